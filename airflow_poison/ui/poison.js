// The page of queues in the Airflow UI: plain JavaScript, no bundler. It reads; it has no way to change anything.
// Everything from a queue is put into text nodes, never into markup.

const { createElement: h, Fragment, isValidElement, useEffect, useRef, useState, useSyncExternalStore } = globalThis.React;
const { useSearchParams } = globalThis.ReactRouterDOM;

const DEFAULT_CONNECTION = "poison_default";
const ALWAYS_SHOWN = ["main", "retry", "poison"];
const REFRESH_SECONDS = 15;
const PATIENCE_SECONDS = 120;
const ANSWERS_KEPT = 40;
const SHOWN_AT_ONCE = 50;
const DIALOG = "poison.dialog"; // the property of a dialog's messages
const STATES = {
  SO: ["started outbound", "begun here, nothing sent yet", "good"],
  SI: ["started inbound", "begun by the partner, nothing received yet", "good"],
  CO: ["conversing", "both sides may send", "good"],
  DI: ["disconnected inbound", "the partner has ended it", "quiet"],
  DO: ["disconnected outbound", "this side has ended it, the partner has not yet", "quiet"],
  ER: ["error", "an Error message has arrived", "bad"],
  CD: ["closed", "over", "quiet"],
};
const HEADING = { tabIndex: -1 }; // where the focus goes when its link is gone
const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

const STYLE = `
.poison { height: 100%; overflow: auto; padding: 1rem 1.25rem 3rem; color: var(--chakra-colors-fg, CanvasText); font-size: 0.9rem; line-height: 1.45; }
.poison h1 { font-size: 1.35rem; font-weight: 600; margin: 0; overflow-wrap: anywhere; }
.poison h2 { font-size: 1.05rem; font-weight: 600; margin: 1.6rem 0 0.5rem; }
.poison a, .poison button.link { color: var(--chakra-colors-fg-info, LinkText); text-decoration: underline; text-underline-offset: 2px; cursor: pointer; background: none; border: 0; padding: 0; font: inherit; text-align: left; overflow-wrap: anywhere; }
.poison .bar { display: flex; flex-wrap: wrap; gap: 0.6rem 1rem; align-items: center; margin-bottom: 0.6rem; }
.poison .grow { flex: 1; }
.poison .quiet { color: var(--chakra-colors-fg-muted, GrayText); }
.poison .scroll { overflow-x: auto; border: 1px solid var(--chakra-colors-border, GrayText); border-radius: 6px; }
.poison table { border-collapse: collapse; width: 100%; }
.poison th, .poison td { text-align: left; vertical-align: top; padding: 0.4rem 0.75rem; border-bottom: 1px solid var(--chakra-colors-border, GrayText); }
.poison tr:last-child > * { border-bottom: 0; }
.poison thead th { font-weight: 600; white-space: nowrap; background: var(--chakra-colors-bg-muted, Canvas); }
.poison tbody th { font-weight: 500; }
.poison .number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.poison .brief { white-space: nowrap; }
.poison .narrow { overflow-wrap: anywhere; min-width: 7.5rem; }
.poison .slim { overflow-wrap: anywhere; min-width: 6.5rem; }
.poison .below { margin-top: 0.5rem; }
.poison .wrap { overflow-wrap: anywhere; min-width: 14rem; }
.poison .badge { display: inline-block; border-radius: 999px; padding: 0.05rem 0.6rem; font-size: 0.8rem; font-weight: 600; border: 1px solid currentColor; white-space: nowrap; }
.poison .good { color: var(--chakra-colors-fg-success, green); }
.poison .bad { color: var(--chakra-colors-fg-error, crimson); }
.poison .note { border: 1px solid currentColor; border-left-width: 4px; border-radius: 6px; padding: 0.5rem 0.8rem; margin: 0.6rem 0; overflow-wrap: anywhere; white-space: pre-wrap; }
.poison .calm { border-color: var(--chakra-colors-border-emphasized, GrayText); }
.poison .note p { margin: 0 0 0.5rem; }
.poison .tiles { display: flex; flex-wrap: wrap; gap: 0.7rem; }
.poison .tile { border: 1px solid var(--chakra-colors-border, GrayText); border-radius: 8px; padding: 0.6rem 0.9rem; min-width: 9.5rem; }
.poison .tile[aria-current="true"] { outline: 2px solid var(--chakra-colors-fg-info, Highlight); }
.poison .tile strong { display: block; font-size: 1.4rem; font-variant-numeric: tabular-nums; }
.poison input, .poison button.act { font: inherit; color: inherit; background: var(--chakra-colors-bg, Canvas); border: 1px solid var(--chakra-colors-border-emphasized, GrayText); border-radius: 6px; padding: 0.25rem 0.6rem; }
.poison button.act { cursor: pointer; }
.poison :focus-visible { outline: 2px solid var(--chakra-colors-fg-info, Highlight); outline-offset: 2px; }
.poison pre { margin: 0; padding: 0.6rem 0.8rem; max-height: 26rem; overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--chakra-colors-border, GrayText); border-radius: 6px; background: var(--chakra-colors-bg-muted, Canvas); font-size: 0.82rem; }
`;

// Words -----------------------------------------------------------------------------------------------------------

function span(seconds) {
  let left = Math.max(0, Math.round(seconds));
  const words = [];
  for (const [unit, size] of UNITS) {
    const count = Math.floor(left / size);
    left %= size;
    if (count) words.push(`${count} ${unit}`);
    else if (words.length) break;
    if (words.length === 2) break;
  }
  return words.join(" ") || "0 s";
}

function age(instant, now) {
  return instant ? span((Date.parse(now) - Date.parse(instant)) / 1000) : "";
}

function due(instant, now) {
  if (!instant) return "";
  const seconds = (Date.parse(instant) - Date.parse(now)) / 1000;
  return seconds <= 0 ? "now" : `in ${span(seconds)}`;
}

function time(instant) {
  return instant ? `${instant.slice(0, 19).replace("T", " ")} UTC` : "";
}

function count(number) {
  return number.toLocaleString("en-US");
}

function lasts(instant, now) {
  return instant ? `${time(instant)}, ${due(instant, now)}` : null;
}

function times(row, now) {
  const [timer, lifetime] = [due(row.dialog_timer, now), due(row.lifetime, now)];
  return [timer && `timer ${timer}`, timer && lifetime && h("br", { key: "br" }), lifetime && `lifetime ${lifetime}`];
}

function waiting(row) {
  return Object.values(row.waiting).reduce((sum, number) => sum + number, 0);
}

function mistake(row) {
  return row.error ? `${row.error.code}: ${row.error.description}` : "";
}

function cell(value) {
  if (value === null || value === undefined || value === "") return "none";
  if (isValidElement(value)) return value;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// Asking ----------------------------------------------------------------------------------------------------------

async function ask(name, query, signal) {
  const url = new URL(`poison/api/${name}`, document.baseURI);
  for (const [key, value] of Object.entries(query)) if (value !== null && value !== undefined) url.searchParams.set(key, value);
  const answer = await fetch(url, { credentials: "same-origin", headers: { Accept: "application/json" }, signal }).catch((error) => {
    throw new Error(signal.aborted ? `The server has not answered within ${PATIENCE_SECONDS} s.` : `The server cannot be reached (${error.message}).`);
  });
  if (answer.ok) return answer.json();
  const detail = await answer.json().then((body) => body.detail, () => null);
  if (answer.status === 401) throw new Error("You are signed out. Load the page again to sign in.");
  if (answer.status === 403) throw new Error("You may not read queues: that takes the right to read assets.");
  throw new Error(typeof detail === "string" ? detail : `The server answered with status ${answer.status}.`);
}

// What a name answers to a query: {found, at, error, late}. One request is under way at a time, however long it takes; the last good answer
// stays when a newer one fails. Questions outlive the components, which Airflow makes anew at the first click.
class Question {
  constructor(name, query) {
    Object.assign(this, { name, query, answer: {}, asking: null, views: new Set() });
    this.current = () => this.answer;
    this.subscribe = (view) => {
      this.views.add(view);
      return () => {
        this.views.delete(view);
        setTimeout(() => !this.views.size && this.stop(), 1000);
      };
    };
  }

  async ask() {
    if (this.asking) {
      if (Date.now() - this.asking.began >= REFRESH_SECONDS * 500) this.tell({ ...this.answer, late: true });
      return;
    }
    const { signal } = (this.asking = Object.assign(new AbortController(), { began: Date.now() }));
    const timer = setTimeout(() => this.asking?.signal === signal && this.asking.abort(), PATIENCE_SECONDS * 1000);
    const { found, at } = this.answer;
    const answer = await ask(this.name, this.query, signal).then((news) => ({ found: news, at: new Date() }), (error) => ({ found, at, error: error.message }));
    clearTimeout(timer);
    if (this.asking?.signal !== signal) return;
    this.asking = null;
    this.tell(answer);
  }

  stop() {
    this.asking?.abort();
    this.asking = null;
  }

  tell(answer) {
    this.answer = answer;
    for (const view of this.views) view();
  }
}

const questions = new Map();

function questionOf(name, query) {
  const key = JSON.stringify([name, query]);
  if (!questions.has(key)) questions.set(key, new Question(name, query));
  const spare = [...questions].filter(([other, { views }]) => other !== key && !views.size);
  for (const [other] of spare.slice(0, Math.max(0, questions.size - ANSWERS_KEPT))) questions.delete(other);
  return questions.get(key);
}

// Asked again when the query or `round` changes.
function useAnswer(name, query, round) {
  const question = questionOf(name, query);
  useEffect(() => { question.ask(); }, [question, round]);
  return useSyncExternalStore(question.subscribe, question.current);
}

function useRounds() {
  const [round, setRound] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && setRound((number) => number + 1), REFRESH_SECONDS * 1000);
    return () => clearInterval(timer);
  }, []);
  return [round, () => setRound((number) => number + 1)];
}

// Where somebody is -------------------------------------------------------------------------------------------------

const place = { focused: null, click: null };

function sameControl(main, lost) {
  const mark = (element) => [element.tagName, ...["href", "aria-label", "name"].map((name) => element.getAttribute(name)), element.textContent].join("\n");
  const target = (element) => (element.tagName === "A" ? element.getAttribute("href") : mark(element));
  return [...main.querySelectorAll("a[href], button, input, [tabindex]")].find((each) => each.tagName === lost.tagName && target(each) === target(lost));
}

// Whoever uses the keyboard goes on at the same link, or, where it is gone, at the heading of what took its place.
function keepFocus(main) {
  const lost = place.focused;
  if (!lost || lost.isConnected || (document.activeElement && document.activeElement !== document.body)) return;
  const same = sameControl(main, lost);
  if (same) same.focus({ preventScroll: true });
  else (main.querySelector("section h2") ?? main.querySelector("h1")).focus();
}

// A click on a link that stays leaves the page where it was, also when what is below has to be read first.
function keepScroll(main) {
  if (!place.click || main.querySelector("[data-reading]")) return;
  const { href, top } = place.click;
  if ([...main.querySelectorAll("a[href]")].some((each) => each.getAttribute("href") === href)) main.scrollTop = top;
  place.click = null;
}

function useKeptPlace() {
  const main = useRef(null);
  useEffect(() => {
    const keep = () => { keepFocus(main.current); keepScroll(main.current); };
    const observer = new MutationObserver(keep);
    observer.observe(main.current, { childList: true, subtree: true });
    keep();
    return () => observer.disconnect();
  }, []);
  const scrolled = () => { place.click = null; };
  return {
    ref: main,
    onFocus: (event) => { place.focused = event.target; },
    onBlur: () => { place.focused = null; }, // not called for what React takes away
    onWheel: scrolled, onTouchMove: scrolled, onPointerDown: scrolled, onKeyDown: scrolled,
  };
}

// Parts -----------------------------------------------------------------------------------------------------------

function Answered({ answer, children }) {
  const { found, at, error, late } = answer;
  if (found === undefined && error) return h("p", { className: "note bad", role: "alert" }, error);
  if (found === undefined) return h("p", { className: "quiet", role: "status", "data-reading": true }, late ? "Reading … this takes long." : "Reading …");
  const from = `From ${time(at.toISOString())}. `;
  return h(Fragment, null,
    error ? h("p", { className: "note bad", role: "alert" }, `${from}The last try to read it again has failed: ${error}`)
      : late ? h("p", { className: "note calm", role: "status" }, `${from}A newer answer takes long and is on its way.`) : null,
    children(found));
}

function State({ state }) {
  return h("span", { className: `badge ${state === "enabled" ? "good" : "bad"}` }, state);
}

function ConversationState({ state }) {
  const [word, meaning, kind] = STATES[state] ?? ["unknown", "", "quiet"];
  return h("span", { className: `badge ${kind}`, title: meaning }, `${state} ${word}`);
}

// The first `unique` cells say which row it is: a row that stays keeps its elements, and with them the focus and what is selected.
function Rows({ caption, heads, rows, unique = 1 }) {
  const seen = new Map();
  const keyOf = (row) => {
    const key = row.slice(0, unique).map((value) => value?.props?.children ?? value).join("\n");
    seen.set(key, (seen.get(key) ?? 0) + 1);
    return `${seen.get(key)} ${key}`;
  };
  const head = ([title, kind]) => h("th", { key: title, scope: "col", className: kind ?? "" }, title);
  const body = (row) => h("tr", { key: keyOf(row) }, row.map((value, column) => h(column ? "td" : "th", {
    key: heads[column][0], className: heads[column][1] ?? "", ...(column ? {} : { scope: "row" }),
  }, value)));
  return h("div", { className: "scroll" }, h("table", { "aria-label": caption },
    h("thead", null, h("tr", null, heads.map(head))), h("tbody", null, rows.map(body))));
}

function Facts({ caption, facts }) {
  const rows = Object.entries(facts).map(([name, value]) => [name.replaceAll("_", " "), cell(value)]);
  return rows.length ? h(Rows, { caption, heads: [["name"], ["value", "wrap"]], rows }) : h("p", { className: "quiet" }, "None.");
}

function Go({ to, go, children, label }) {
  const href = `?${new URLSearchParams(to)}`;
  const follow = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    place.click = { href: event.currentTarget.getAttribute("href"), top: event.currentTarget.closest(".poison").scrollTop };
    go(to);
  };
  return h("a", { href: `${location.pathname}${href}`, onClick: follow, "aria-label": label }, children);
}

// Pages -----------------------------------------------------------------------------------------------------------

function Queues({ connId, go, round }) {
  const answer = useAnswer("queues", { conn_id: connId }, round);
  const depth = (queue, place) => count(queue.sub_queues[place].messages);
  const row = (queue, now) => [
    h(Go, { to: { conn_id: connId, queue: queue.queue }, go }, queue.queue),
    queue.halted ? h(State, { state: queue.state === "enabled" ? `poison: ${queue.poison_state}` : queue.state }) : h(State, { state: "enabled" }),
    ...ALWAYS_SHOWN.map((place) => depth(queue, place)),
    age(queue.oldest_enqueued_at, now),
    due(queue.next_due_at, now),
    queue.policy.system ?? "",
  ];
  const heads = [["queue"], ["state"], ["main", "number"], ["retry", "number"], ["poison", "number"], ["oldest"], ["next due"], ["rules of"]];
  return h(Answered, { answer }, (found) => h("div", null,
    found.unreadable.length ? h("p", { className: "note bad", role: "alert" },
      `Cannot be read: ${found.unreadable.join(", ")}. The log of the API server says why.`) : null,
    found.queues.length
      ? h(Rows, { caption: "Queues", heads, rows: found.queues.map((queue) => row(queue, found.at)) })
      : h("p", found.exists ? { className: "quiet" } : { className: "note calm", role: "status" }, found.exists
        ? "This store has no queue. The first send to one makes it."
        : "No queue yet: the folder of this store does not exist where the API server runs. The first send makes it. If it was there before, mount it "
          + "there, or correct the store's root in the connection; the log of the API server says which folder it is.")));
}

function Queue({ connId, name, place, view, lookupId, handle, go, round }) {
  const answer = useAnswer("queue", { conn_id: connId, queue: name }, round);
  const here = { conn_id: connId, queue: name };
  return h(Answered, { answer }, (queue) => h("div", null,
    h("p", { className: "bar" }, h(State, { state: queue.state }), h("span", { className: "quiet" }, `rules of ${queue.policy.system ?? "no system"}`)),
    h(Halts, { queue, here, go }),
    h(Tiles, { queue, here, place: lookupId ? null : handle || view === "ended" ? "conversations" : view ?? place, go }),
    lookupId ? h(Message, { here, lookupId, go, round })
      : handle ? h(Conversation, { here, handle, go, round })
        : view === "conversations" || view === "ended" ? h(Conversations, { here, ended: view === "ended", go, round })
          : view === "events" ? h(Events, { here, go, round })
            : h(Messages, { here, place, go, round, now: queue.at }),
    h("h2", null, "Claims"),
    queue.claims.length
      ? h(Rows, {
        caption: "Claims", heads: [["pass"], ["sub-queue"], ["messages", "number"], ["ends"]],
        rows: queue.claims.map((claim) => [claim.key, claim.sub_queue, count(claim.messages), claim.expired ? "expired: the next receive takes it over" : due(claim.expires_at, queue.at)]),
      })
      : h("p", { className: "quiet" }, "No pass is at work."),
    h("h2", null, "Policy"),
    h(Facts, { caption: "Policy", facts: queue.policy })));
}

function Halts({ queue, here, go }) {
  const halt = (state, reason, who) => state === "enabled" ? null : h("div", { className: "note bad", role: "alert", key: who },
    `${who} is ${state}: ${reason || "somebody set it so"} `,
    queue.halted_by === null ? null : h(Go, { to: { ...here, lookup_id: queue.halted_by }, go }, `Look at message ${queue.halted_by}.`));
  const until = queue.blocked_until === "restart" ? "its broker is restarted or the message is removed" : time(queue.blocked_until);
  const outage = (found, who) => found ? h("p", { className: "note bad", role: "alert", key: `${who} outage` },
    `${who} has an outage since ${time(found.since)}, no poison: nothing is charged. The next probe is due at ${time(found.next_probe_at)}.`) : null;
  return h("div", null,
    outage(queue.outage, queue.queue),
    outage(queue.poison_outage, `${queue.queue};poison`),
    halt(queue.state, queue.reason, queue.queue),
    halt(queue.poison_state, queue.poison_reason, `${queue.queue};poison`),
    queue.blocked_until ? h("p", { className: "note bad", role: "alert" }, `${queue.queue} is blocked until ${until}.`) : null,
    queue.expired_claims ? h("p", { className: "note" }, "A pass has died. The next receive finishes what it left.") : null);
}

function Tiles({ queue, here, place, go }) {
  const shown = Object.entries(queue.sub_queues).filter(([name, depth]) => ALWAYS_SHOWN.includes(name) || depth.messages);
  const tile = (name, to, ...rest) => h("div", { className: "tile", key: name, "aria-current": name === place ? "true" : undefined },
    h(Go, { to: { ...here, ...to }, go }, name), ...rest);
  const subQueue = ([name, depth]) => tile(name, { sub_queue: name },
    h("strong", null, count(depth.messages)),
    h("span", { className: "quiet" }, [
      depth.messages ? `oldest ${age(depth.oldest_enqueued_at, queue.at)}` : "empty",
      depth.claimed ? `${count(depth.claimed)} claimed` : "",
      depth.next_due_at ? `next due ${due(depth.next_due_at, queue.at)}` : "",
    ].filter(Boolean).join(", ")));
  const quiet = (text) => h("div", { className: "quiet" }, text);
  return h("div", { className: "tiles", role: "group", "aria-label": "Sub-queues" }, shown.map(subQueue),
    tile("events", { view: "events" }, quiet("what has happened")),
    queue.has_conversations ? tile("conversations", { view: "conversations" },
      queue.conversations === null ? null : h("strong", null, count(queue.conversations)),
      quiet(queue.conversations === null ? "too many to count here" : "going on")) : null);
}

function Messages({ here, place, go, round, now }) {
  const answer = useAnswer("messages", { ...here, sub_queue: place, limit: SHOWN_AT_ONCE }, round);
  const row = (message) => [
    h(Go, { to: { ...here, lookup_id: message.lookup_id }, go, label: `Message ${message.lookup_id}` }, String(message.lookup_id)),
    message.message_id, count(message.abort_count), count(message.move_count), count(message.crash_count),
    age(message.enqueued_at, now), due(message.due_at, now), message.reason ?? "",
  ];
  const heads = [["lookup id"], ["message id", "wrap"], ["aborts", "number"], ["moves", "number"], ["crashes", "number"], ["age", "brief"], ["due", "brief"], ["last error", "wrap"]];
  return h("section", null, h("h2", HEADING, `Messages in ${place}`), h(Answered, { answer }, (found) => found.messages.length
    ? h("div", null, h(Rows, { caption: "Messages", heads, rows: found.messages.map(row) }),
      found.more ? h("p", { className: "quiet" }, `${count(found.more)} more behind them, in the order in which they are received.`) : null)
    : h("p", { className: "quiet" }, "No message.")));
}

function Message({ here, lookupId, go, round }) {
  const answer = useAnswer("message", { ...here, lookup_id: lookupId }, round);
  return h("section", null, h("h2", HEADING, `Message ${lookupId}`), h(Answered, { answer }, ({ message }) => {
    const { body, body_encoding: encoding, body_bytes: bytes, body_cut: cut, last_error: error, reason, properties, ...facts } = message;
    const all = { ...facts, ...Object.fromEntries(Object.entries(properties).map(([name, value]) => [`property ${name}`, value])) };
    const shown = Object.entries(all).filter(([, value]) => value !== null && value !== "").map(([name, value]) => [name, name.endsWith("_at") ? time(value) : value]);
    return h("div", null,
      reason ? h("p", { className: "note bad" }, reason) : null,
      DIALOG in properties ? h(Belonging, { here, handle: facts.conversation_id, go, round }) : null,
      h("h2", null, `Body: ${count(bytes)} bytes${encoding === "base64" ? ", as Base64" : encoding === "text" ? "" : `, XML in ${encoding}`}${cut ? ", only its beginning" : ""}`),
      h("pre", { tabIndex: 0, "aria-label": "Body" }, body),
      error?.trace ? h("h2", null, "Trace of its last failure") : null,
      error?.trace ? h("pre", { tabIndex: 0, "aria-label": "Trace" }, error.trace) : null,
      h("h2", null, "Counts and columns"),
      h(Facts, { caption: "Counts and columns", facts: Object.fromEntries(shown) }));
  }), h(Events, { here: { ...here, lookup_id: lookupId }, go, round }));
}

function Conversations({ here, ended, go, round }) {
  const answer = useAnswer("conversations", { ...here, ended, limit: SHOWN_AT_ONCE }, round);
  const row = (each, now) => [
    h(Go, { to: { ...here, conversation: each.handle }, go }, each.handle),
    h(ConversationState, { state: each.state }),
    [each.service, h("br", { key: "br" }), `→ ${each.far_service}`], each.contract,
    each.group_id === each.handle ? "its own" : each.group_id,
    count(waiting(each)), count(each.failures), times(each, now), mistake(each),
  ];
  const heads = [["conversation", "narrow"], ["state"], ["service → partner", "narrow"], ["contract", "narrow"], ["group", "slim"],
    ["waiting", "number"], ["failures", "number"], ["due", "brief"], ["error", "slim"]];
  return h("section", null, h("h2", HEADING, ended ? "Conversations, with those that have ended" : "Conversations"),
    h(Answered, { answer }, (found) => found.conversations.length
      ? h("div", null, h(Rows, { caption: "Conversations", heads, rows: found.conversations.map((each) => row(each, found.at)) }),
        found.more ? h("p", { className: "quiet" }, `${count(found.more)} more: airflow poison conversations shows them.`) : null)
      : h("p", { className: "quiet" }, ended ? "None is remembered." : "None goes on.")),
    h("p", { className: "below" }, h(Go, { to: { ...here, view: ended ? "conversations" : "ended" }, go }, ended ? "Only those that go on" : "Also those that have ended")));
}

function Conversation({ here, handle, go, round }) {
  const answer = useAnswer("conversation", { ...here, handle, limit: SHOWN_AT_ONCE }, round);
  return h("section", null, h("h2", HEADING, `Conversation ${handle}`), h(Answered, { answer }, (found) => {
    const { conversation, at } = found;
    const facts = {
      state: h(ConversationState, { state: conversation.state }),
      side: `${conversation.is_initiator ? "initiator" : "target"}, service ${conversation.service}`,
      partner: h(Partner, { found, here, go }),
      contract: conversation.contract,
      group: conversation.group_id === handle ? "its own" : conversation.group_id,
      priority: conversation.priority,
      began: conversation.is_initiator ? time(conversation.began_at) : "by the partner",
      sent: count(conversation.sent),
      failures: count(conversation.failures),
      timer: lasts(conversation.dialog_timer, at),
      lifetime_ends: lasts(conversation.lifetime, at),
      id_of_both_sides: conversation.conversation_id,
    };
    const held = Object.entries(found.unsent);
    return h("div", null,
      conversation.error ? h("p", { className: "note bad" }, `The partner's error ${mistake(conversation)}`) : null,
      found.halts ? h(Ending, { found }) : null,
      h(Facts, { caption: "Conversation", facts }),
      h("h2", null, "Messages that wait for it"),
      h(Waiting, { found, here, go }),
      held.length ? h("h2", null, "Not sent yet") : null,
      held.length ? h("p", { className: found.far_queue?.state === "disabled" ? "note calm" : "quiet" }, found.far_queue?.state === "disabled"
        ? `The queue of ${conversation.far_service} is disabled: these wait here until it is enabled.`
        : "These leave with the next pass of either side.") : null,
      held.length ? h(Rows, { caption: "Not sent yet", heads: [["type", "wrap"], ["messages", "number"]], rows: held.map(([type, number]) => [type, count(number)]) }) : null,
      found.ended_by && !found.halts ? h("h2", null, "To end it by hand") : null,
      found.halts ? null : h(Ending, { found }));
  }));
}

function Partner({ found, here, go }) {
  const { conversation, far_queue: there } = found;
  const to = there && { conn_id: here.conn_id, queue: there.queue, conversation: conversation.far_handle };
  return h("span", null, conversation.far_service, there ? " in queue " : " (the queue of this service is not known here)",
    there ? h(Go, { to: { conn_id: here.conn_id, queue: there.queue }, go }, there.queue) : null,
    there && there.state !== "enabled" ? [" ", h(State, { key: "state", state: there.state })] : null,
    there ? [": ", h(Go, { key: "side", to, go }, "its side")] : null);
}

function Waiting({ found, here, go }) {
  const row = (message) => [
    h(Go, { to: { ...here, lookup_id: message.lookup_id }, go, label: `Message ${message.lookup_id}` }, String(message.lookup_id)),
    message.message_type ?? "", message.sub_queue, count(message.abort_count), age(message.enqueued_at, found.at), message.reason ?? "",
  ];
  const heads = [["lookup id"], ["type", "wrap"], ["sub-queue"], ["aborts", "number"], ["age", "brief"], ["last error", "wrap"]];
  if (!found.messages.length) return h("p", { className: "quiet" }, "No message.");
  return h("div", null, h(Rows, { caption: "Messages that wait for it", heads, rows: found.messages.map(row) }),
    found.more ? h("p", { className: "quiet" }, `${count(found.more)} more.`) : null);
}

function Ending({ found }) {
  if (!found.ended_by) return null;
  const { conversation, messages, more, halts } = found;
  const told = ["SI", "CO"].includes(conversation.state) ? `, ${conversation.far_service} is told an error` : "";
  const rest = halts ? ", and the queue is enabled" : "";
  const gone = messages.length + more;
  return h("div", { className: "note calm" },
    h("p", null, halts ? h("strong", null, "A message of this conversation has halted the queue. ") : null, "This ends it, in a shell that sees the store: ",
      gone ? `${count(gone)} of its messages ${gone === 1 ? "goes" : "go"} for good` : "nothing of it waits here", told, rest, "."),
    h("pre", { tabIndex: 0, "aria-label": "Command" }, found.ended_by));
}

// The conversation of a message, on the message's page.
function Belonging({ here, handle, go, round }) {
  const answer = useAnswer("conversation", { ...here, handle, limit: 1 }, round);
  if (answer.error && answer.found === undefined) return h("p", { className: "quiet" }, answer.error);
  return h("section", null, h("h2", HEADING, "Its conversation"), h(Answered, { answer }, (found) => {
    const { state, service, contract } = found.conversation;
    const facts = {
      conversation: h(Go, { to: { ...here, conversation: handle }, go }, handle),
      state: h(ConversationState, { state }),
      partner: h(Partner, { found, here, go }),
      service, contract,
      waiting_here: count(waiting(found.conversation)),
    };
    return h("div", null, h(Facts, { caption: "Its conversation", facts }), found.halts ? h(Ending, { found }) : null);
  }));
}

function Events({ here, go, round }) {
  const answer = useAnswer("events", here, round);
  const row = (event) => [
    time(event.at), event.event,
    event.lookup_id === null ? "" : h(Go, { to: { ...here, lookup_id: event.lookup_id }, go }, String(event.lookup_id)),
    event.lookup_id === null ? "" : count(event.abort_count), event.lookup_id === null ? "" : count(event.move_count),
    Object.entries(event.details).filter(([, value]) => value !== "").map(([name, value]) => `${name}: ${value}`).join(", "),
  ];
  const heads = [["time"], ["event"], ["message"], ["aborts", "number"], ["moves", "number"], ["details", "wrap"]];
  return h("section", null, h("h2", HEADING, "Events"), h(Answered, { answer }, (found) => found.events.length
    ? h("div", null, h(Rows, { caption: "Events", unique: 3, heads, rows: found.events.toReversed().map(row) }),
      found.earlier ? h("p", { className: "quiet" }, `${count(found.earlier)} earlier ones: airflow poison history shows them.`) : null)
    : h("p", { className: "quiet" }, "Nothing is recorded.")));
}

function Connection({ connId, go }) {
  const [text, setText] = useState(connId);
  useEffect(() => setText(connId), [connId]);
  const submit = (event) => { event.preventDefault(); go({ conn_id: text.trim() || DEFAULT_CONNECTION }); };
  return h("form", { className: "bar", onSubmit: submit, style: { margin: 0 } }, h("label", null, "Connection ",
    h("input", { value: text, onChange: (event) => setText(event.target.value), spellCheck: false, autoComplete: "off" })),
  text.trim() === connId ? null : h("button", { className: "act" }, "Show"));
}

function PoisonQueues() {
  const [query, setQuery] = useSearchParams();
  const [round, again] = useRounds();
  const go = (to) => setQuery(new URLSearchParams(to));
  const connId = query.get("conn_id") || DEFAULT_CONNECTION;
  const name = query.get("queue");
  const kept = useKeptPlace();
  return h("main", { className: "poison", ...kept }, h("style", null, STYLE),
    h("div", { className: "bar" },
      name ? h("nav", { "aria-label": "Up" }, h(Go, { to: { conn_id: connId }, go }, "Queues"), " /") : null,
      h("h1", HEADING, name ?? "Queues"),
      h("span", { className: "grow" }),
      h(Connection, { connId, go }),
      h("button", { className: "act", onClick: again }, "Refresh")),
    name
      ? h(Queue, { connId, name, place: query.get("sub_queue") || "main", view: query.get("view"), lookupId: query.get("lookup_id"), handle: query.get("conversation"), go, round })
      : h(Queues, { connId, go, round }));
}

globalThis["Poison queues"] = PoisonQueues;
globalThis.AirflowPlugin = PoisonQueues;
