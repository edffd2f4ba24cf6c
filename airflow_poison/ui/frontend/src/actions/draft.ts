/** An action while somebody fills its form in: texts only. */

import type { ActionRequest } from "../api/generated";
import type { Canary } from "../api/plans";

import { redrives, verbOf, type Deed } from "./verbs";

export type EditWith = "patch" | "body" | "nothing";

export interface Draft {
  readonly deed: Deed;
  readonly target: string;
  readonly editWith: EditWith;
  readonly patch: string;
  readonly body: string;
  readonly properties: string;
  readonly reason: string;
  readonly limit: string;
  readonly rate: string;
  readonly chunk: string;
  readonly canary: string;
  readonly share: string;
}

export type DraftProblems = Partial<Record<keyof Draft, string>>;

export interface Made {
  readonly action: ActionRequest;
  readonly limit: number | null;
  readonly pace: { readonly rate?: number; readonly chunk?: number; readonly canary?: Canary };
}

export function emptyDraft(deed: Deed, body: string | null): Draft {
  return {
    deed,
    target: deed === "move" ? "main" : "",
    editWith: body === null ? "patch" : "body",
    patch: "{}",
    body: body ?? "",
    properties: "",
    reason: "",
    limit: "",
    rate: "",
    chunk: "",
    canary: redrives(deed) ? "100" : "",
    share: "95",
  };
}

/** Return what a draft wants, or what is wrong with which field. */
export function madeOf(draft: Draft): { readonly made: Made } | { readonly problems: DraftProblems } {
  const problems: DraftProblems = {};
  const whole = (name: "limit" | "rate" | "chunk" | "canary") => {
    const text = draft[name].trim();
    if (text === "") return null;
    if (!/^\d{1,9}$/.test(text) || Number(text) < 1) problems[name] = `“${text}” is no whole number of at least 1.`;
    return Number(text);
  };
  const [limit, rate, chunk, canary] = [whole("limit"), whole("rate"), whole("chunk"), whole("canary")];
  const share = Number(draft.share);
  if (redrives(draft.deed) && canary === null) problems.canary ??= "A redrive needs a canary. To do without one, put back.";
  if (redrives(draft.deed) && !(share > 0 && share <= 100)) problems.share = `“${draft.share}” is no share: write a number above 0, at most 100.`;
  const action = actionOf(draft, problems);
  if (Object.keys(problems).length) return { problems };
  return {
    made: {
      action,
      limit,
      pace: {
        ...(rate === null ? {} : { rate }),
        ...(chunk === null ? {} : { chunk }),
        ...(redrives(draft.deed) && canary !== null ? { canary: { messages: canary, share: share / 100 } } : {}),
      },
    },
  };
}

function actionOf(draft: Draft, problems: DraftProblems): ActionRequest {
  const verb = verbOf(draft.deed);
  if (verb === "move" || verb === "send_to") return { verb, target: draft.target.trim() };
  if (verb !== "edit") return { verb };
  const properties = propertiesOf(draft, problems);
  const edited = editOf(draft, problems);
  if (!Object.keys(edited).length && !Object.keys(properties).length) problems.properties ??= "Nothing is to be changed: choose an edit, or name a property.";
  return { verb, ...edited, ...(draft.deed === "edit" ? {} : { target: "main" }), ...(Object.keys(properties).length ? { properties } : {}) };
}

function editOf(draft: Draft, problems: DraftProblems): Partial<ActionRequest> {
  switch (draft.editWith) {
    case "nothing":
      return {};
    case "body":
      return { body: draft.body };
    case "patch":
      return { patch: patchOf(draft.patch, problems) };
  }
}

/** Return the patch as it is written: values of JavaScript would lose digits of its numbers. */
function patchOf(text: string, problems: DraftProblems): string | null {
  try {
    const patch: unknown = JSON.parse(text);
    if (typeof patch === "object" && patch !== null && !Array.isArray(patch)) {
      if (!Object.keys(patch).length) problems.patch = 'The patch changes nothing: name a field, for example {"currency": "EUR"}.';
      return text;
    }
    problems.patch = 'A merge patch is a JSON object, for example {"currency": "EUR"}; null removes a field.';
  } catch (error) {
    problems.patch = `This is no JSON: ${error instanceof Error ? error.message : ""}`;
  }
  return null;
}

function propertiesOf({ properties }: Draft, problems: DraftProblems): Record<string, string | null> {
  const lines = properties.split("\n").filter((line) => line.trim() !== "");
  const wrong = lines.find((line) => !/^\s*(-\s*\S|[^=\s][^=]*=)/.test(line));
  if (wrong !== undefined) problems.properties = `“${wrong}” is neither name=value nor -name.`;
  return Object.fromEntries(
    lines.map((line) => {
      const text = line.trim();
      const at = text.indexOf("=");
      return text.startsWith("-") && at < 0 ? [text.slice(1).trim(), null] : [text.slice(0, at).trim(), text.slice(at + 1)];
    }),
  );
}
