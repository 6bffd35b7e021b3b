"""A model behind the API that OpenAI's clients speak, with its operators in sight.

From the ground up: `errors`, `settings`, `conversation`, `schema` (what bodies have in common), `bodies` (how they are
read), `metrics`, `audit_log`, `tracing`, `dispatcher` (the way to the engine's thread), `grammar` (structured answers),
`generation` (the one stream of pieces), `service` (from fields to a generation), `event_stream` (a generation in a
protocol's words), then a file for each protocol, with what it takes and how it tells (`chat`, `completions`,
`responses`, `messages`), `tokens`, `page` and `page_api` (what a browser shows), `guard` (the middleware), `app`,
`server`; `cluster` is the same application on Ray Serve.
"""
