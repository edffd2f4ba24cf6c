/** An address that may be linked to: of the web or of this server; null for every other, such as `javascript:`. */
export function safeUrl(url: string | null | undefined): string | null {
  if (!url) return null;
  try {
    return ["http:", "https:"].includes(new URL(url, document.baseURI).protocol) ? url : null;
  } catch {
    return null;
  }
}
