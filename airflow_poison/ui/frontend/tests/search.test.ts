import { describe, expect, it } from "vitest";

import { draftOf, filterOf } from "../src/queue/filterDraft";
import { termOf } from "../src/queue/searchText";

const NOW = new Date("2026-11-28T12:00:00Z");
const of = (text: string, before = {}) => termOf(text, before, "Europe/Berlin", NOW);

describe("what is typed into the search field", () => {
  it.each([
    ["carrier", { text: "carrier" }],
    ["http://host: no such thing", { text: "http://host: no such thing" }],
    ["a <= b", { text: "a <= b" }],
    ["type:KeyError", { error_type: "KeyError" }],
    ["error: 0b12c34d56e7", { error: "0b12c34d56e7" }],
    ["group: VX", { group: "VX" }],
    ["message_type: //Shop/Order", { message_type: "//Shop/Order" }],
    ["id: 7, 8", { lookup_ids: [7, 8] }],
    ["since: 2 h", { since: "2026-11-28T10:00:00.000Z" }],
    ["until: 2026-11-25", { until: "2026-11-24T23:00:00.000Z" }],
    ["until: 2026-11-25 10:30", { until: "2026-11-25T09:30:00.000Z" }],
    ["crash_count > 0", { counts: ["crash_count>0"] }],
    ["country=DE", { properties: { country: "DE" } }],
    ["note=a=b", { properties: { note: "a=b" } }],
    ["SQL: body.delay > 60 and type = 'x'", { where: "body.delay > 60 and type = 'x'" }],
  ])("%s is a condition", (text, filter) => {
    expect(of(text)).toEqual({ filter });
  });

  it.each([
    ["", /Write what to look for/],
    ["error: KeyError", /is no error group.*write type: KeyError/],
    ["since: soon", /“soon” is no time/],
    ["until: 2026-13-45", /is no time/],
    ["id: seven", /“seven” is no lookup id/],
    ["until: 2026-02-30", /“2026-02-30” is no time/],
  ])("%s is none, and says why", (text, problem) => {
    expect(of(text).filter).toBeUndefined();
    expect(of(text).problem).toMatch(problem);
  });

  it("is added to what is there", () => {
    const before = { counts: ["move_count>=1"], properties: { a: "1" }, lookup_ids: [1], text: "old" };
    expect(of("abort_count=2", before).filter?.counts).toEqual(["move_count>=1", "abort_count=2"]);
    expect(of("b=2", before).filter?.properties).toEqual({ a: "1", b: "2" });
    expect(of("id: 2", before).filter?.lookup_ids).toEqual([1, 2]);
    expect(of("new", before).filter).toEqual({ ...before, text: "new" });
  });
});

it("a lookup id of more digits than JavaScript keeps is none: it would be another one", () => {
  const { problems } = filterOf({ ...draftOf({}, "UTC"), lookup_ids: "9007199254740993" }, "UTC");
  expect(problems.lookup_ids).toMatch(/“9007199254740993” is no lookup id/);
});
