// Served instead of the page where it was not built: why, and how to build it.
const { createElement } = globalThis.React;

function NotBuilt() {
  return createElement(
    "main",
    { className: "poison", style: { padding: "1rem 1.25rem", maxWidth: "60rem" } },
    createElement("h1", { style: { fontSize: "1.35rem", fontWeight: 600 } }, "The page of queues is not built"),
    createElement("p", null, "This airflow-poison was installed where Node was missing, or too old. Install Node 20.19 or newer with npm, and run in the clone:"),
    createElement("pre", null, "pip wheel --no-deps --wheel-dir dist .\npip install --force-reinstall --no-deps dist/airflow_poison-*.whl"),
    createElement("p", null, "In an environment that make setup has made, run make setup again. Then restart the API server."),
    createElement("p", null, "Everything else of airflow-poison works without the page; airflow poison list and show have the same data."),
  );
}

globalThis["Poison queues"] = NotBuilt;
globalThis.AirflowPlugin = NotBuilt;
