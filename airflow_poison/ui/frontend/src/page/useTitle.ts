import { useEffect } from "react";

const own: { title: string | null; before: string } = { title: null, before: "" };

/** Name what is shown in the title of the browser's tab, as Airflow's pages do. What Airflow had there comes back when the page is left. */
export function useTitle(parts: readonly string[]): void {
  const shown = parts.filter(Boolean).join(" · ");
  useEffect(() => {
    if (document.title !== own.title) own.before = document.title; // Airflow has set it, before or since
    own.title = [shown, own.before].filter(Boolean).join(" - ");
    document.title = own.title;
  });
  useEffect(
    () => () => {
      if (document.title === own.title) document.title = own.before;
      own.title = null;
    },
    [],
  );
}
