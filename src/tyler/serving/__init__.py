"""A model behind the API that OpenAI's clients speak, with its operators in sight.

From the ground up: `errors`, `settings`, `schema` (what may be asked), `metrics`, `audit_log`, `dispatcher` (the
engine's thread), `answers` (what became of a request), `grammar` (structured answers), `scoring`, `service` (from
fields to answers), `event_stream`, then one file per endpoint (`chat`, `completions`, `responses`), `page` and
`page_api` (what a browser shows), `guard` (the middleware), `app`, `server`; `cluster` is the same application on Ray
Serve.
"""
