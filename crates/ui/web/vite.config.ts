// Builds the page into the crate, where the server embeds it.
import { defineConfig } from "vite";

export default defineConfig({
  build: {
    outDir: process.env.SUREFOOT_UI_OUT ?? "../dist",
    emptyOutDir: true,
    // The content security policy allows nothing inline.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
});
