import { Button, Field, HStack, Input } from "@chakra-ui/react";
import { useState, type SyntheticEvent } from "react";
import { useSearchParams } from "react-router-dom";

import { DEFAULT_CONNECTION } from "./connection";
import { usePage } from "./PageContext";

/** The connection whose queues are shown. */
export function ConnectionForm() {
  const { connId } = usePage();
  const [, setQuery] = useSearchParams();
  const [text, setText] = useState(connId);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    setQuery({ conn_id: text.trim() || DEFAULT_CONNECTION });
  };
  return (
    <form onSubmit={submit}>
      <HStack>
        <Field.Root orientation="horizontal" gap="2" width="auto">
          <Field.Label fontSize="xs" flex="none">
            Connection
          </Field.Label>
          <Input
            name="connection"
            size="xs"
            width={{ base: "8.5rem", md: "11rem" }}
            height="7"
            value={text}
            spellCheck={false}
            autoComplete="off"
            onChange={(event) => {
              setText(event.currentTarget.value);
            }}
          />
        </Field.Root>
        {text.trim() === connId ? null : (
          <Button type="submit" size="xs" variant="outline">
            Show
          </Button>
        )}
      </HStack>
    </form>
  );
}
