import { Component, type ReactNode } from "react";

import { Note } from "./Note";

interface Props {
  readonly children: ReactNode;
}

/** A part of the page that may fail by itself: then it says so, and all else stays. What is read anew is tried again. */
export class Boundary extends Component<Props, { readonly failed: string | null }> {
  override readonly state: { readonly failed: string | null } = { failed: null };

  static getDerivedStateFromError(error: unknown) {
    return { failed: error instanceof Error ? `${error.name}: ${error.message}` : String(error) };
  }

  override componentDidUpdate(before: Props) {
    if (this.state.failed !== null && before.children !== this.props.children) this.setState({ failed: null });
  }

  override render() {
    if (this.state.failed === null) return this.props.children;
    return <Note status="error">{`This part cannot be shown (${this.state.failed}). The rest of the page can be used; airflow poison show has the same in a shell.`}</Note>;
  }
}
