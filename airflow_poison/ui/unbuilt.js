// Served instead of the page where it was not built: how to build it.
const { createElement } = globalThis.React;

function NotBuilt() {
  return createElement(
    "main",
    { className: "poison", style: { padding: "1rem 1.25rem", maxWidth: "60rem" } },
    createElement("h1", { style: { fontSize: "1.35rem", fontWeight: 600 } }, "The page of queues is not built"),
    createElement("p", null, "Install Node 20.19 or newer, run this in the clone, and restart the API server:"),
    createElement("pre", null, "make setup"),
    createElement("p", null, "Everything else of airflow-poison works without it; airflow poison list and show have the same data."),
  );
}

globalThis["Poison queues"] = NotBuilt;
globalThis.AirflowPlugin = NotBuilt;
