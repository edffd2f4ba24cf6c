/** A filter while somebody types it: texts only. */

import type { Filter } from "../lib/selection";
import { withoutEmpty } from "../lib/selection";
import { fromInput, toInput } from "../lib/zone";

export interface FilterDraft {
  readonly text: string;
  readonly error: string;
  readonly error_type: string;
  readonly since: string;
  readonly until: string;
  readonly counts: string;
  readonly group: string;
  readonly message_type: string;
  readonly message_id: string;
  readonly properties: string;
  readonly lookup_ids: string;
  readonly where: string;
}

export type Problems = Partial<Record<keyof FilterDraft, string>>;

const COUNT = /^(abort_count|move_count|crash_count)\s*(>=|<=|!=|=|>|<)\s*(\d+)$/;

export function draftOf(filter: Filter, zone: string): FilterDraft {
  const { text = "", error = "", error_type = "", group = "", message_type = "", message_id = "", where = "" } = filter;
  return {
    text,
    error,
    error_type,
    group,
    message_type,
    message_id,
    where,
    since: toInput(zone, filter.since),
    until: toInput(zone, filter.until),
    counts: filter.counts?.join(", ") ?? "",
    properties: Object.entries(filter.properties ?? {})
      .map(([name, value]) => `${name}=${value}`)
      .join("\n"),
    lookup_ids: filter.lookup_ids?.join(", ") ?? "",
  };
}

/** Return the filter, or what is wrong with which field. */
export function filterOf(draft: FilterDraft, zone: string): { readonly filter: Filter; readonly problems: Problems } {
  const problems: Problems = {};
  const counts = parts(draft.counts, ",").map((each) => each.replaceAll(/\s+/g, ""));
  const wrong = counts.find((each) => !COUNT.test(each));
  if (wrong !== undefined) problems.counts = `“${wrong}” is no condition: write abort_count>=3, move_count=0 or crash_count>0, with commas between them.`;
  const ids = parts(draft.lookup_ids, ",");
  const noId = ids.find((each) => !/^\d{1,15}$/.test(each));
  if (noId !== undefined) problems.lookup_ids = `“${noId}” is no lookup id: write numbers with commas between them.`;
  const properties = parts(draft.properties, "\n").map((line) => [line.split("=", 1)[0]?.trim() ?? "", line.slice(line.indexOf("=") + 1).trim()] as const);
  const noProperty = parts(draft.properties, "\n").find((line) => line.indexOf("=") < 1);
  if (noProperty !== undefined) problems.properties = `“${noProperty}” is no property: write name=value, one a line.`;
  const [since, until] = [fromInput(zone, draft.since), fromInput(zone, draft.until)];
  if (since !== undefined && until !== undefined && since >= until) problems.until = "This is not after the time in “Enqueued since”.";
  const filter = withoutEmpty({
    text: draft.text,
    error: draft.error.trim(),
    error_type: draft.error_type.trim(),
    group: draft.group.trim(),
    message_type: draft.message_type.trim(),
    message_id: draft.message_id.trim(),
    where: draft.where.trim(),
    counts,
    properties: Object.fromEntries(properties),
    ...(since === undefined ? {} : { since }),
    ...(until === undefined ? {} : { until }),
    ...(ids.length ? { lookup_ids: ids.map(Number) } : {}),
  });
  return { filter, problems };
}

function parts(text: string, sign: string): string[] {
  return text
    .split(sign)
    .map((each) => each.trim())
    .filter(Boolean);
}
