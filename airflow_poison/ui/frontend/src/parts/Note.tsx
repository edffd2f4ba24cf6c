import { Alert } from "@chakra-ui/react";
import type { ReactNode } from "react";

interface Props {
  readonly status?: "error" | "warning" | "info" | "success" | "neutral";
  readonly title?: ReactNode;
  readonly children?: ReactNode;
}

/** Something that people should read. Errors and warnings interrupt a screen reader, others wait. */
export function Note({ status = "info", title, children }: Props) {
  const urgent = status === "error" || status === "warning";
  return (
    <Alert.Root status={status} role={urgent ? "alert" : "status"} variant="surface" size="sm" marginBottom="3" alignItems="flex-start">
      <Alert.Indicator aria-hidden />
      <Alert.Content minWidth="0">
        {title ? <Alert.Title>{title}</Alert.Title> : null}
        <Alert.Description width="full" whiteSpace="pre-wrap" overflowWrap="anywhere">
          {children}
        </Alert.Description>
      </Alert.Content>
    </Alert.Root>
  );
}
