/** What the server answers to a read, kept between readings and shared by all components that show it. */

import { PATIENCE_SECONDS, read, Refused, type Query } from "./client";

export const REFRESH_SECONDS = 15;
const LONGEST_PAUSE_SECONDS = 120;
const ANSWERS_KEPT = 40;

/** `found` is the last good answer, `at` when it came; `error` why the newest reading failed; `late` that it takes long. */
export interface Answer<T> {
  readonly found?: T;
  readonly at?: Date;
  readonly error?: string;
  readonly status?: number;
  readonly late?: boolean;
}

/** One request is under way at a time, however long it takes. Questions outlive components: Airflow makes the page anew at the first click. */
export class Question<T> {
  private answer: Answer<T> = {};
  private asking: { readonly control: AbortController; readonly began: number } | null = null;
  private readonly views = new Set<() => void>();
  private failures = 0;
  private notBefore = 0;
  private tag: string | null = null;

  constructor(
    private readonly name: string,
    private readonly query: Query,
  ) {}

  readonly current = (): Answer<T> => this.answer;

  readonly subscribe = (view: () => void): (() => void) => {
    this.views.add(view);
    return () => {
      this.views.delete(view);
      setTimeout(() => {
        if (!this.views.size) this.stop();
      }, 1000);
    };
  };

  get isSeen(): boolean {
    return this.views.size > 0;
  }

  /** Read again; after failures only when their pause is over, unless somebody `insists`. */
  async ask(insists = false): Promise<void> {
    if (this.asking) {
      if (Date.now() - this.asking.began >= REFRESH_SECONDS * 500) this.tell({ ...this.answer, late: true });
      return;
    }
    if (!insists && Date.now() < this.notBefore) return;
    const control = new AbortController();
    this.asking = { control, began: Date.now() };
    const timer = setTimeout(() => {
      control.abort();
    }, PATIENCE_SECONDS * 1000);
    const answer = await this.reading(control.signal);
    clearTimeout(timer);
    if (this.asking?.control !== control) return; // eslint-disable-line @typescript-eslint/no-unnecessary-condition -- stop() may have come
    this.asking = null;
    this.tell(answer);
  }

  private async reading(signal: AbortSignal): Promise<Answer<T>> {
    try {
      const before = this.answer.found;
      const { found, tag, now } = await read<T>(this.name, this.query, signal, before === undefined ? null : this.tag);
      this.failures = this.notBefore = 0;
      this.tag = tag;
      return { found: found ?? (isOfTime(before) ? { ...before, at: now } : (before as T)), at: new Date() };
    } catch (error) {
      const refused = error instanceof Refused ? error : new Refused(String(error));
      this.pause(refused.again);
      const { found, at } = this.answer;
      return { ...(found === undefined ? {} : { found }), ...(at === undefined ? {} : { at }), error: refused.message, status: refused.status };
    }
  }

  /** The first failure is tried again at once, later ones after twice the time of the one before. */
  private pause(atLeast: number): void {
    const seconds = this.failures ? Math.min(LONGEST_PAUSE_SECONDS, REFRESH_SECONDS * 2 ** this.failures) : 0;
    this.failures += 1;
    this.notBefore = Date.now() + Math.max(seconds, atLeast) * 1000;
  }

  private stop(): void {
    this.asking?.control.abort();
    this.asking = null;
  }

  private tell(answer: Answer<T>): void {
    this.answer = answer;
    for (const view of this.views) view();
  }
}

/** Whether an answer says at which time it was read: ages are shown from then on. */
function isOfTime(found: unknown): found is { readonly at: string } {
  return typeof found === "object" && found !== null && "at" in found;
}

const questions = new Map<string, Question<unknown>>();

export function questionOf<T>(name: string, query: Query): Question<T> {
  const key = JSON.stringify([name, query]);
  const known = questions.get(key);
  if (known) return known as Question<T>;
  const spare = [...questions].filter(([, question]) => !question.isSeen);
  for (const [other] of spare.slice(0, Math.max(0, questions.size - ANSWERS_KEPT))) questions.delete(other);
  const made = new Question<T>(name, query);
  questions.set(key, made);
  return made;
}

/** Forget all answers: for tests. */
export function forgetAnswers(): void {
  questions.clear();
}
