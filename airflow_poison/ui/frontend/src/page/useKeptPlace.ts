/** Where somebody is on the page: the focus and the scroll position outlive a click, though Airflow makes the page anew at the first one. */

import { useEffect, useLayoutEffect, useRef, type FocusEvent, type MouseEvent, type RefObject } from "react";
import { NavigationType, useLocation, useNavigationType } from "react-router-dom";

interface Kept {
  focused: HTMLElement | null;
  click: { readonly href: string | null; readonly top: number } | null;
  /** Where an entry of the browser's history was, which somebody has gone back to. */
  back: number | null;
  /** The entry that is shown. */
  entry: string;
}

const kept: Kept = { focused: null, click: null, back: null, entry: "" };
const tops = new Map<string, number>();
const FOCUSABLE = "a[href], button, input, select, textarea, [tabindex]";

export function rememberClick(event: MouseEvent<HTMLAnchorElement>): void {
  const link = event.currentTarget;
  kept.click = { href: link.getAttribute("href"), top: link.closest(".poison")?.scrollTop ?? 0 };
}

function mark(element: Element): string {
  if (element.tagName === "A") return element.getAttribute("href") ?? "";
  const named = ["aria-label", "name", "id"].map((name) => element.getAttribute(name)).find(Boolean); // ids are made anew with the page
  return [named, element.textContent].join("\n");
}

/** Whoever uses the keyboard goes on at the same control, or, where it is gone, at the heading of what took its place. */
function keepFocus(main: HTMLElement): void {
  const lost = kept.focused;
  if (!lost || lost.isConnected || (document.activeElement && document.activeElement !== document.body)) return;
  const same = [...main.querySelectorAll<HTMLElement>(FOCUSABLE)].find((each) => each.tagName === lost.tagName && mark(each) === mark(lost));
  if (same) {
    same.focus({ preventScroll: true });
    if (same instanceof HTMLInputElement && (same.type === "search" || same.type === "text")) same.setSelectionRange(same.value.length, same.value.length);
    return;
  }
  (main.querySelector<HTMLElement>("section h2[tabindex]") ?? main.querySelector<HTMLElement>("h1[tabindex]"))?.focus();
}

/** A click on a link that stays leaves the page where it was, also when what is below has to be read first; after the way back it is where it was then. */
function keepScroll(main: HTMLElement): void {
  const { click, back } = kept;
  if (main.querySelector("[data-reading]")) return;
  if (back !== null) main.scrollTop = back;
  else if (click) main.scrollTop = [...main.querySelectorAll("a[href]")].some((each) => each.getAttribute("href") === click.href) ? click.top : 0;
  kept.click = kept.back = null;
}

export interface KeptPlace {
  readonly ref: RefObject<HTMLDivElement | null>;
  readonly onFocus: (event: FocusEvent<HTMLElement>) => void;
  readonly onBlur: () => void;
  readonly onScroll: () => void;
  readonly onWheel: () => void;
  readonly onTouchMove: () => void;
  readonly onPointerDown: () => void;
  readonly onKeyDown: () => void;
}

export function useKeptPlace(): KeptPlace {
  const main = useRef<HTMLDivElement>(null);
  const { key } = useLocation();
  const way = useNavigationType();
  useLayoutEffect(() => {
    if (kept.entry === key) return; // Airflow has made the page anew
    if (kept.entry !== "" && way === NavigationType.Pop) kept.back = tops.get(key) ?? 0;
    kept.entry = key;
  }, [key, way]);
  useEffect(() => {
    const element = main.current;
    if (!element) return undefined;
    const keep = () => {
      keepFocus(element);
      keepScroll(element);
    };
    const observer = new MutationObserver(keep);
    observer.observe(element, { childList: true, subtree: true });
    keep();
    return () => {
      observer.disconnect();
    };
  }, []);
  const scrolled = () => {
    kept.click = kept.back = null;
  };
  return {
    ref: main,
    onFocus: (event) => {
      kept.focused = event.target;
    },
    onBlur: () => {
      kept.focused = null; // not called for what React takes away
    },
    onScroll: () => {
      if (kept.back === null && main.current) tops.set(kept.entry, main.current.scrollTop);
    },
    onWheel: scrolled,
    onTouchMove: scrolled,
    onPointerDown: scrolled,
    onKeyDown: scrolled,
  };
}
