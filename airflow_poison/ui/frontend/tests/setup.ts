import { cleanup, configure } from "@testing-library/react";
import { afterEach, beforeEach } from "vitest";

import { forgetAnswers } from "../src/api/question";

import { beWide } from "./page";

// What jsdom has not and Chakra asks for.
globalThis.ResizeObserver = class {
  observe(): void {
    // nothing has a size here
  }
  unobserve(): void {
    // nothing has a size here
  }
  disconnect(): void {
    // nothing has a size here
  }
};
// jsdom finds styles by trying all rules of Chakra's on each element, which takes minutes. No test looks at styles: a browser does.
window.getComputedStyle = (element) => (element as HTMLElement).style;
Element.prototype.scrollTo = () => undefined;
Element.prototype.scrollIntoView = () => undefined;

configure({ asyncUtilTimeout: 20_000, defaultHidden: true }); // machines that are busy with other tests

beforeEach(() => {
  localStorage.clear();
  localStorage.setItem("timezone", JSON.stringify("UTC"));
  forgetAnswers();
  beWide();
});

afterEach(cleanup);
