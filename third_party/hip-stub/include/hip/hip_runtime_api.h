/* Present only because the build script of `hip-runtime-sys` looks for a file of
   this name. Nothing includes it: the crate's bindings are generated already. */
