import { Button, Flex, HStack, Tag, Wrap } from "@chakra-ui/react";
import { useState } from "react";

import type { SubQueue } from "../api/types";
import { inWords, type Filter } from "../lib/selection";
import { timeIn, useZone } from "../lib/zone";

import { FilterForm } from "./FilterForm";

interface Props {
  readonly filter: Filter;
  readonly place: SubQueue | null;
  readonly onApply: (filter: Filter, place?: SubQueue | null) => void;
}

/** What the messages are filtered by, and the form that changes it. */
export function FilterBar({ filter, place, onApply }: Props) {
  const zone = useZone();
  const [open, setOpen] = useState(false);
  const set = inWords(filter, (at) => timeIn(zone, at));
  return (
    <Flex direction="column" gap="2" marginBottom="3">
      <HStack wrap="wrap">
        <Button
          size="xs"
          variant="outline"
          aria-expanded={open}
          onClick={() => {
            setOpen(!open);
          }}
        >
          {set.length ? "Change the filter" : "Filter"}
        </Button>
        {set.length ? (
          <Button
            size="xs"
            variant="ghost"
            onClick={() => {
              onApply({});
            }}
          >
            Clear it
          </Button>
        ) : null}
        {set.length ? (
          <Wrap as="ul" aria-label="The filter" listStyleType="none" gap="1">
            {set.map((each) => (
              <Tag.Root as="li" key={each} size="md" maxWidth="full">
                <Tag.Label>{each}</Tag.Label>
              </Tag.Root>
            ))}
          </Wrap>
        ) : null}
      </HStack>
      {open ? <FilterForm filter={filter} place={place} onApply={onApply} /> : null}
    </Flex>
  );
}
