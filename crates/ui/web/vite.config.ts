// Builds the page into the crate, where the server embeds it.
import { defineConfig } from "vite";

/** `surefoot ui --dev` asks Vite, and the page asks it for what has changed. */
const dev = Number(process.env.SUREFOOT_UI_DEV_PORT ?? 0);
// Whoever started this may be killed: then its end of our stdin closes.
if (dev > 0) process.stdin.on("end", () => process.exit()).resume();

export default defineConfig({
  ...(dev > 0
    ? {
        server: {
          fs: { allow: ["../../.."] },
          host: "127.0.0.1",
          port: dev,
          strictPort: true,
          hmr: { host: "127.0.0.1", clientPort: dev },
        },
      }
    : {}),
  build: {
    outDir: process.env.SUREFOOT_UI_OUT ?? "../dist",
    emptyOutDir: true,
    // The content security policy allows nothing inline.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
});
