/** The page without Airflow, for work on it: `npm run dev`. */

import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { createRoot } from "react-dom/client";
import { BrowserRouter } from "react-router-dom";

import { App } from "../src/App";

const root = document.getElementById("root");
document.documentElement.classList.add(localStorage.getItem("theme") ?? "light");
if (root) {
  createRoot(root).render(
    <ChakraProvider value={defaultSystem}>
      <BrowserRouter>
        <App />
      </BrowserRouter>
    </ChakraProvider>,
  );
}
