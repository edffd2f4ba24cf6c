import { Button, Field, Flex, HStack, Input, Tag, Wrap } from "@chakra-ui/react";
import { useId, useState, type SyntheticEvent } from "react";

import type { SubQueue } from "../api/types";
import { chipsOf, type Filter } from "../lib/selection";
import { timeIn, useZone } from "../lib/zone";
import { CopyButton } from "../parts/CopyButton";

import { FilterForm } from "./FilterForm";
import { termOf, WORDS } from "./searchText";

interface Props {
  readonly filter: Filter;
  readonly place: SubQueue | null;
  readonly onApply: (filter: Filter, place?: SubQueue | null) => void;
}

/** One field to search with, what is searched for as chips, a link that says the same, and a form with all fields. */
export function FilterBar({ filter, place, onApply }: Props) {
  const zone = useZone();
  const words = useId();
  const [open, setOpen] = useState(false);
  const [text, setText] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const chips = chipsOf(filter, (at) => timeIn(zone, at));
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    const term = termOf(text, filter, zone);
    setProblem(term.problem ?? null);
    if (term.filter) onApply(term.filter);
  };
  return (
    <Flex direction="column" gap="2" marginBottom="3">
      <HStack wrap="wrap" align="flex-start">
        <form onSubmit={submit} style={{ flex: "1 1 20rem", maxWidth: "48rem" }}>
          <Field.Root invalid={problem !== null}>
            <Input
              type="search"
              size="sm"
              aria-label="Search messages"
              placeholder="a text, type: KeyError, since: 2 h, move_count>=3, country=DE, sql: body.delay > 60"
              list={words}
              value={text}
              spellCheck={false}
              autoComplete="off"
              onChange={(event) => {
                setText(event.currentTarget.value);
              }}
            />
            {problem === null ? null : <Field.ErrorText>{problem}</Field.ErrorText>}
          </Field.Root>
          <datalist id={words}>
            {WORDS.map((word) => (
              <option key={word} value={word} />
            ))}
          </datalist>
        </form>
        <Button
          size="sm"
          variant="outline"
          aria-expanded={open}
          onClick={() => {
            setOpen(!open);
          }}
        >
          All fields
        </Button>
      </HStack>
      {chips.length ? (
        <HStack wrap="wrap">
          <Wrap as="ul" aria-label="The filter" listStyleType="none" gap="1">
            {chips.map(({ label, rest }) => (
              <Tag.Root as="li" key={label} size="lg" maxWidth="full" variant="surface">
                <Tag.Label>{label}</Tag.Label>
                <Tag.EndElement>
                  <Tag.CloseTrigger
                    aria-label={`Without ${label}`}
                    onClick={() => {
                      onApply(rest);
                    }}
                  />
                </Tag.EndElement>
              </Tag.Root>
            ))}
          </Wrap>
          <Button
            size="xs"
            variant="ghost"
            onClick={() => {
              onApply({});
            }}
          >
            Clear
          </Button>
          <CopyButton text={window.location.href}>Copy link</CopyButton>
        </HStack>
      ) : null}
      {open ? <FilterForm filter={filter} place={place} onApply={onApply} /> : null}
    </Flex>
  );
}
