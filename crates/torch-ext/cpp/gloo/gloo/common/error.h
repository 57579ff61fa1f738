// Nothing of it is named by ProcessGroupGloo.hpp.
#pragma once
