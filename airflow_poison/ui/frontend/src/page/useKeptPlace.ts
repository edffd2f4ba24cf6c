/** Where somebody is on the page: the focus and the scroll position outlive a click, though Airflow makes the page anew at the first one. */

import { useEffect, useRef, type FocusEvent, type MouseEvent, type RefObject } from "react";

interface Kept {
  focused: HTMLElement | null;
  click: { readonly href: string | null; readonly top: number } | null;
}

const kept: Kept = { focused: null, click: null };
const FOCUSABLE = "a[href], button, input, select, textarea, [tabindex]";

export function rememberClick(event: MouseEvent<HTMLAnchorElement>): void {
  const link = event.currentTarget;
  kept.click = { href: link.getAttribute("href"), top: link.closest(".poison")?.scrollTop ?? 0 };
}

function mark(element: Element): string {
  if (element.tagName === "A") return element.getAttribute("href") ?? "";
  return [...["aria-label", "name", "id"].map((name) => element.getAttribute(name)), element.textContent].join("\n");
}

/** Whoever uses the keyboard goes on at the same control, or, where it is gone, at the heading of what took its place. */
function keepFocus(main: HTMLElement): void {
  const lost = kept.focused;
  if (!lost || lost.isConnected || (document.activeElement && document.activeElement !== document.body)) return;
  const same = [...main.querySelectorAll<HTMLElement>(FOCUSABLE)].find((each) => each.tagName === lost.tagName && mark(each) === mark(lost));
  if (same) same.focus({ preventScroll: true });
  else main.querySelector<HTMLElement>("section h2[tabindex], h1[tabindex]")?.focus();
}

/** A click on a link that stays leaves the page where it was, also when what is below has to be read first. */
function keepScroll(main: HTMLElement): void {
  const { click } = kept;
  if (!click || main.querySelector("[data-reading]")) return;
  if ([...main.querySelectorAll("a[href]")].some((each) => each.getAttribute("href") === click.href)) main.scrollTop = click.top;
  kept.click = null;
}

export interface KeptPlace {
  readonly ref: RefObject<HTMLDivElement | null>;
  readonly onFocus: (event: FocusEvent<HTMLElement>) => void;
  readonly onBlur: () => void;
  readonly onWheel: () => void;
  readonly onTouchMove: () => void;
  readonly onPointerDown: () => void;
  readonly onKeyDown: () => void;
}

export function useKeptPlace(): KeptPlace {
  const main = useRef<HTMLDivElement>(null);
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
    kept.click = null;
  };
  return {
    ref: main,
    onFocus: (event) => {
      kept.focused = event.target;
    },
    onBlur: () => {
      kept.focused = null; // not called for what React takes away
    },
    onWheel: scrolled,
    onTouchMove: scrolled,
    onPointerDown: scrolled,
    onKeyDown: scrolled,
  };
}
