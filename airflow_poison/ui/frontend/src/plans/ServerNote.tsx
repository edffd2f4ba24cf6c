import type { Plan } from "../api/plans";
import { many } from "../lib/words";
import { Note } from "../parts/Note";
import { Quiet } from "../parts/Quiet";

import { isLeft } from "./controls";

/** What the API server does with a plan: it waits its turn or for passes, or it does not go on. */
export function ServerNote({ plan }: { readonly plan: Plan }) {
  const { server } = plan;
  if (plan.state === "failed") return <Note status="error">{`It cannot go on: ${(plan.error ?? "the events say why").replace(/\.$/, "")}. When the cause is mended, Resume goes on where it was.`}</Note>;
  if (server?.error) return <Note status="error">{`It does not go on: ${server.error}`}</Note>;
  if (isLeft(plan)) {
    const again = plan.state === "undoing" ? "Go on undoing" : "Resume";
    return <Note status="warning">{`This server does not go on with it: somebody does so elsewhere, or a server has ended. ${again} goes on here.`}</Note>;
  }
  if (server?.state === "waiting") return <Quiet>{server.before ? `It waits behind ${many(server.before, "other plan")}.` : "It is next."}</Quiet>;
  return server?.state === "later" ? <Quiet>It waits for passes: for the messages that they have claimed, or for the canary to be received.</Quiet> : null;
}
