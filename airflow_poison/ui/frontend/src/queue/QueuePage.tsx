import { useState } from "react";

import type { Queue } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { Conversation } from "../conversations/Conversation";
import { Conversations } from "../conversations/Conversations";
import { GroupPage } from "../group/GroupPage";
import { MessagePage } from "../message/MessagePage";
import { Header } from "../page/Header";
import { usePlace } from "../page/usePlace";
import { useTitle } from "../page/useTitle";
import { Answered } from "../parts/Answered";
import { Boundary } from "../parts/Boundary";
import { Note } from "../parts/Note";
import { Section } from "../parts/Section";
import { PlanList } from "../plans/PlanList";
import { PlanPage } from "../plans/PlanPage";

import { Decisions } from "./Decisions";
import { Events } from "./Events";
import { Groups } from "./Groups";
import { Halts } from "./Halts";
import { PlaceView } from "./PlaceView";
import { QueueHeader } from "./QueueHeader";
import { Settings } from "./Settings";
import { Tiles } from "./Tiles";
import { startOf, titleOf, viewOf, type View } from "./view";

/** One queue: what is wrong with it, its tiles, and the view that the address asks for. */
export function QueuePage({ name }: { readonly name: string }) {
  const answer = useAnswer<Queue>("queue", { queue: name });
  return (
    <>
      <Header queue={name}>
        <Boundary>{answer.found ? <QueueHeader queue={answer.found} /> : null}</Boundary>
      </Header>
      <Answered answer={answer} lines={6}>
        {(queue) => <Found queue={queue} />}
      </Answered>
    </>
  );
}

function Found({ queue }: { readonly queue: Queue }) {
  const { query } = usePlace();
  const [start] = useState(() => startOf(queue)); // it does not change under somebody's eyes
  const wanted = viewOf(query);
  const view = wanted.kind === "start" ? start : wanted;
  useTitle([titleOf(view), queue.queue]);
  return (
    <>
      <Halts queue={queue} />
      <Decisions queue={queue} />
      <Tiles queue={queue} view={view} />
      <Boundary>
        <Shown queue={queue} view={view} />
      </Boundary>
    </>
  );
}

function Shown({ queue, view }: { readonly queue: Queue; readonly view: Exclude<View, { readonly kind: "start" }> }) {
  const name = queue.queue;
  switch (view.kind) {
    case "message":
      return <MessagePage key={view.id} queue={name} id={view.id} />;
    case "conversation":
      return <Conversation queue={name} handle={view.handle} />;
    case "conversations":
      return <Conversations queue={name} ended={view.ended} />;
    case "plan":
      return <PlanPage queue={name} id={view.id} />;
    case "plans":
      return <PlanList queue={name} />;
    case "events":
      return <Events queue={name} />;
    case "groups":
      return <Groups queue={name} place={view.place} />;
    case "group":
      return <GroupPage key={view.error} queue={name} place={view.place} error={view.error} />;
    case "settings":
      return <Settings queue={queue} />;
    case "wrong":
      return (
        <Section title="Messages">
          <Note status="error">{view.why}</Note>
        </Section>
      );
    case "messages":
      return <PlaceView key={view.place} queue={queue} place={view.place} />;
  }
}
