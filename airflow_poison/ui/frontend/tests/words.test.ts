import { afterEach, describe, expect, it, vi } from "vitest";

import { bytesOf, hexDump, isExact, pretty } from "../src/lib/body";
import { parseFilter, selectionInWords } from "../src/lib/selection";
import { safeUrl } from "../src/lib/url";
import { age, due, percent, span } from "../src/lib/words";
import { fromInput, timeIn, timeInUtc, toInput } from "../src/lib/zone";
import { leftSeconds } from "../src/plans/speed";
import { viewOf } from "../src/queue/view";

afterEach(() => {
  localStorage.clear();
});

describe("words", () => {
  it("tell spans in their two largest units", () => {
    expect([0, 59, 60, 3_661, 90_000, 86_400].map(span)).toEqual(["0 s", "59 s", "1 min", "1 h 1 min", "1 d 1 h", "1 d"]);
    expect(age("2026-11-25T10:00:00Z", "2026-11-25T10:05:00Z")).toBe("5 min");
    expect([due("2026-11-25T10:00:00Z", "2026-11-25T10:05:00Z"), due("2026-11-25T10:10:00Z", "2026-11-25T10:05:00Z")]).toEqual(["now", "in 5 min"]);
  });

  it("tell shares", () => {
    expect([0, 0.001, 0.5, 1].map(percent)).toEqual(["0 %", "< 1 %", "50 %", "100 %"]);
  });

  it("tell a selection", () => {
    expect(selectionInWords({}, String)).toBe("Sub-queue poison, all messages");
    expect(selectionInWords({ sub_queue: null, error_type: "KeyError", lookup_ids: [1, 2] }, String)).toBe(
      "All sub-queues; error type KeyError; lookup ids 1, 2",
    );
  });
});

describe("times", () => {
  it("are in the zone that Airflow's UI is set to, with UTC beside it", () => {
    expect(timeIn("Asia/Kolkata", "2026-11-25T10:00:00Z")).toBe("2026-11-25 15:30:00");
    expect(timeInUtc("2026-11-25T10:00:00Z")).toBe("2026-11-25 10:00:00 UTC");
  });

  it.each(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])("are right where clocks change, in whichever zone the browser is: %s", (zone) => {
    vi.stubEnv("TZ", "America/New_York"); // its clock skips an hour on 2026-03-08
    const clock = new Intl.DateTimeFormat("en-GB", { timeZone: zone, hourCycle: "h23", dateStyle: "short", timeStyle: "medium" });
    for (const day of ["2026-03-07", "2026-03-28", "2026-04-04", "2026-10-03", "2026-10-24", "2026-10-31"]) {
      for (let at = Date.parse(day); at < Date.parse(day) + 48 * 3_600_000; at += 30 * 60_000) {
        const shown = toInput(zone, new Date(at).toISOString());
        const [date = "", time = ""] = shown.split("T");
        expect(clock.format(at)).toBe(`${date.split("-").reverse().join("/")}, ${time}`);
        expect(toInput(zone, fromInput(zone, shown))).toBe(shown);
      }
    }
    vi.unstubAllEnvs();
  });

  it("that a clock shows twice are the earlier ones, and those that it skips are as late behind the skip", () => {
    expect(fromInput("Europe/Berlin", "2026-10-25T02:30")).toBe("2026-10-25T00:30:00.000Z");
    expect(fromInput("Europe/Berlin", "2026-03-29T02:30:00")).toBe("2026-03-29T01:30:00.000Z");
    expect(timeIn("Europe/Berlin", "2026-99-99T99:99:99Z")).toBe("2026-99-99T99:99:99Z");
  });

  it.each(["UTC", "Asia/Kolkata", "America/New_York"])("are typed in that zone: %s", (zone) => {
    expect(fromInput(zone, toInput(zone, "2026-07-25T10:00:00.000Z"))).toBe("2026-07-25T10:00:00.000Z");
    expect(fromInput(zone, "")).toBeUndefined();
  });
});

describe("bodies", () => {
  it("of JSON keep their text when they are laid out", () => {
    expect(pretty('{"a":1.0,"a":12345678901234567890}')).toBe('{\n  "a": 1.0,\n  "a": 12345678901234567890\n}');
    expect([pretty("plain"), pretty("{"), pretty("<a>"), pretty("17")]).toEqual([null, null, null, null]);
  });

  it("are exact when they are as long as the server says", () => {
    const text = { body: "Größe", body_encoding: "text", body_cut: false };
    expect([isExact({ ...text, body_bytes: 7 }), isExact({ ...text, body_bytes: 4 }), isExact({ ...text, body_bytes: 7, body_cut: true })]).toEqual([true, false, false]);
    expect(isExact({ body: "x", body_encoding: "UTF-16", body_bytes: 1, body_cut: false })).toBe(false);
  });

  it("are shown as bytes", () => {
    expect(hexDump(bytesOf({ body: "AP9B", body_encoding: "base64" }))).toBe(`00000000  00 ff 41${" ".repeat(39)}  ..A`);
  });
});

describe("addresses", () => {
  it("are linked to only when they are of the web", () => {
    const links = ["/dags/x", "https://example.org/", "javascript:alert(1)", "data:text/html,x", "", null].map(safeUrl);
    expect(links).toEqual(["/dags/x", "https://example.org/", null, null, null, null]);
  });

  it("with a filter that is none have no filter", () => {
    expect([parseFilter(null), parseFilter("{}"), parseFilter('{"lookup_ids":[7]}')]).toEqual([{}, {}, { lookup_ids: [7] }]);
    for (const bad of ["", "{bad", "[1]", "7", '{"text":""}', '{"text":7}', '{"lookup_ids":[]}', '{"lookup_ids":"7"}', '{"sub_queue":"main"}', '{"toString":"x"}', '{"properties":{"a":1}}'])
      expect([bad, parseFilter(bad)]).toEqual([bad, null]);
  });

  it("name a view", () => {
    expect(viewOf(new URLSearchParams("sub_queue=lost"))).toMatchObject({ kind: "wrong" });
    expect(viewOf(new URLSearchParams(""))).toEqual({ kind: "start" });
    expect(viewOf(new URLSearchParams("sub_queue=main"))).toEqual({ kind: "messages", place: "main" });
    expect(viewOf(new URLSearchParams("sub_queue=everywhere"))).toEqual({ kind: "messages", place: null });
    expect(viewOf(new URLSearchParams("view=ended"))).toEqual({ kind: "conversations", ended: true });
  });
});

describe("a plan", () => {
  it("says how long it takes when its speed is known", () => {
    expect(leftSeconds({ at: 0, done: 0 }, { at: 2_000, done: 500 }, 1_500)).toBe(4);
    expect([leftSeconds({ at: 0, done: 5 }, { at: 500, done: 9 }, 10), leftSeconds({ at: 0, done: 5 }, { at: 5_000, done: 5 }, 10)]).toEqual([null, null]);
  });
});
