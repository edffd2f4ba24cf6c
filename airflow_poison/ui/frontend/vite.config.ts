import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

import { mockServer } from "./mock/server.ts";

// Airflow's UI keeps these on `globalThis` for its plugins; the bundle has no copy of its own.
const AIRFLOW = {
  "@chakra-ui/react": "ChakraUI",
  "react": "React",
  "react-dom": "ReactDOM",
  "react-router-dom": "ReactRouterDOM",
  "react/jsx-runtime": "ReactJSXRuntime",
};

export default defineConfig(({ command }) => ({
  plugins: [react(), mockServer()],
  publicDir: false,
  build: {
    lib: { entry: "src/main.tsx", formats: ["iife"], name: "airflowPoison", fileName: () => "poison.js" },
    license: { fileName: "poison.licenses.md" },
    rolldownOptions: { external: Object.keys(AIRFLOW), output: { globals: AIRFLOW } },
  },
  define: command === "build" ? { "process.env.NODE_ENV": JSON.stringify("production") } : {},
  test: {
    environment: "jsdom",
    setupFiles: ["tests/setup.ts"],
    include: ["tests/**/*.test.{ts,tsx}"],
    restoreMocks: true,
    testTimeout: 120_000,
    isolate: false, // each file would load all of Chakra again
  },
}));
