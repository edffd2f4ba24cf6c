import { Button, HStack } from "@chakra-ui/react";

import { read } from "../api/client";
import type { MessageAnswer } from "../api/types";
import { useAct } from "../actions/useAct";
import { usePage } from "../page/PageContext";
import { Note } from "../parts/Note";
import { Quiet } from "../parts/Quiet";

interface Props {
  readonly queue: string;
  readonly id: string;
  readonly shown: MessageAnswer | null;
  readonly onShow: (answer: MessageAnswer | null) => void;
}

/** Show what the queue hides in a body, to those who may see it. It is read once, and each time is noted in Airflow's audit log. */
export function Unmask({ queue, id, shown, onShow }: Props) {
  const { connId } = usePage();
  const { busy, error, run } = useAct();
  const show = () => {
    void run(async () => {
      const { found } = await read<MessageAnswer>("message", { conn_id: connId, queue, lookup_id: id, unmask: true }, new AbortController().signal);
      onShow(found ?? null);
    });
  };
  return (
    <>
      {error === null ? null : <Note status="error">{error}</Note>}
      <HStack wrap="wrap" marginTop="2">
        <Button
          size="xs"
          variant="outline"
          loading={busy}
          onClick={() => {
            if (shown) onShow(null);
            else show();
          }}
        >
          {shown ? "Hide them again" : "Show hidden values"}
        </Button>
        <Quiet>{shown ? "The body as it was read a moment ago, with all values." : "That is noted in Airflow's audit log, with your name."}</Quiet>
      </HStack>
    </>
  );
}
