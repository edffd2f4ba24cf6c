/** The entry of the bundle: Airflow takes the page from `globalThis`, under the name of the plugin's app. */

import { App } from "./App";

Object.assign(globalThis, { "Poison queues": App, "AirflowPlugin": App });
