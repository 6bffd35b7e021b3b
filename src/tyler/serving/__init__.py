"""A model behind the API that OpenAI's clients speak, with its operators in sight.

From the ground up: `errors`, `settings`, `grammar` (structured answers), `scoring` (log-probabilities),
`metrics`, `schema` (what bodies have in common, and how they are read), `dispatcher` (the way to the engine's thread),
`generation` (the one stream of pieces), `audit_log`, `tracing`, `service` (from fields to a generation), `event_stream`
(a generation in a protocol's words), then the protocols, with what each takes and how it tells (`completions` for chats
and texts, `responses`, `messages`), `page` (what a browser shows), `guard` (the middleware), `app`, `server`;
`cluster` is the same application on Ray Serve.
"""
