import type { IncomingMessage } from "node:http";

import type { Plugin } from "vite";

import { Mock } from "./answers.ts";

const PREFIX = "/poison/api/";

async function bodyOf(request: IncomingMessage): Promise<unknown> {
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part as Buffer);
  return parts.length ? JSON.parse(Buffer.concat(parts).toString()) : {};
}

/** Serves made-up answers below `/poison/api` of Vite's own server. */
export function mockServer(): Plugin {
  return {
    name: "made-up-answers",
    apply: "serve",
    configureServer(server) {
      const mock = new Mock();
      server.middlewares.use((request, response, next) => {
        const url = new URL(request.url ?? "/", "http://localhost");
        if (!url.pathname.startsWith(PREFIX)) {
          next();
          return;
        }
        void bodyOf(request).then((body) => {
          const { status, body: answer } = mock.answer(request.method ?? "GET", url.pathname.slice(PREFIX.length), url.searchParams, body);
          response.statusCode = status;
          response.setHeader("Content-Type", "application/json");
          response.end(JSON.stringify(answer));
        });
      });
    },
  };
}
