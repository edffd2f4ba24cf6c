/** Selections, actions and plans, as the server answers and takes them. */

import type { Action, Plan } from "./generated";

export type { Action, Canary, CanarySeen, Plan, PlannedGroup, Plans, Sample, Selection } from "./generated";

export type Verb = Action["verb"];

export type PlanState = Plan["state"];
