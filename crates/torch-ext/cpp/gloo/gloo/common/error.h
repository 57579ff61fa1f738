// Empty: ProcessGroupGloo.hpp uses nothing of this header.
#pragma once
