const KINDS: Readonly<Record<string, string>> = { airflow: "in Airflow", shell: "in a shell", dag: "a task" };

/** Who acted, as events say it: `airflow:ann`, `shell:bob@host`, `dag:shop/run/task`. */
export function Who({ who }: { readonly who: string }) {
  const [kind = "", ...rest] = who.split(":");
  const known = rest.length ? KINDS[kind] : undefined;
  return <strong>{known ? `${rest.join(":")} (${known})` : who}</strong>;
}
