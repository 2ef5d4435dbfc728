package cli

import "strings"

// refusedFlag says why a flag of sglang-router, or of vllm-router, is not taken. It is
// empty for a flag that neither has.
func refusedFlag(name string) string {
	for _, group := range [...]struct{ flags, why string }{
		{"--prefill-policy --decode-policy", "one --policy holds for prefill and decode, which are chosen as a pair"},
		{"--cache-threshold --balance-abs-threshold --balance-rel-threshold --bucket-adjust-interval-secs --eviction-interval-secs --max-tree-size --max-idle-secs --assignment-mode",
			"load is balanced by the tokens in flight; how far a prefix may unbalance it is models[].affinity of a file"},
		{"--max-payload-size", "the longest body is bounds.body of a file, 32 MiB unless told otherwise"},
		{"--dp-aware --intra-node-data-parallel-size", "ranks of one server are the engine's own to choose between; every rank's pool counts for admission"},
		{"--enable-igw", "several models are models[] of a file"},
		{"--mini-lb", "there is one way to serve: both legs must agree before a byte of an answer leaves"},
		{"--worker-startup-timeout-secs --worker-startup-check-interval", "engines may come and go at any time; they are looked at every 2 s, see bounds.refresh of a file"},
		{"--service-discovery --selector --service-discovery-port --service-discovery-namespace --prefill-selector --decode-selector --bootstrap-port-annotation",
			"nodes come by a DNS name with all their addresses (a headless Service), or by a watched file: models[].nodes[].dns and .file of a file"},
		{"--log-dir --log-level --log-json", "log lines go to standard error, one for each request, and hold no text of prompts or answers"},
		{"--prometheus-port --prometheus-host --prometheus-duration-buckets", "metrics are at /metrics of the admin listener: --admin HOST:PORT"},
		{"--request-id-headers", "request ids are minted; the client's own x-client-request-id is echoed and kept for bulkhead explain"},
		{"--request-timeout-secs", "the times for a first byte and between two events are bounds.first_byte and bounds.idle of a file"},
		{"--shutdown-grace-period-secs", "the time for answers in progress is drain of a file, 25 s unless told otherwise"},
		{"--cors-allowed-origins", "browsers are not served: put the application's own server before the gateway"},
		{"--max-concurrent-requests --queue-size --queue-timeout-secs --rate-limit-tokens-per-second",
			"limits belong to tenants, and the queue to a model: tenants[].in_flight, .requests_per_minute and models[].queue of a file"},
		{"--retry-max-retries --retry-initial-backoff-ms --retry-max-backoff-ms --retry-backoff-multiplier --retry-jitter-factor --disable-retries",
			"a request has one second attempt, and only before its first byte; how many may is bounds.retry_percent of a file"},
		{"--cb-failure-threshold --cb-success-threshold --cb-timeout-duration-secs --cb-window-duration-secs --disable-circuit-breaker",
			"when a node is left alone is models[].breaker of a file"},
		{"--health-failure-threshold --health-success-threshold --health-check-timeout-secs --health-check-interval-secs --health-check-endpoint --disable-health-check",
			"health is what an engine tells of itself and, with models[].probe of a file, a question with a known answer; not a 200"},
		{"--tokenizer-path --chat-template --tokenizer-cache-enable-l0 --tokenizer-cache-l0-max-entries --tokenizer-cache-enable-l1 --tokenizer-cache-l1-max-memory",
			"there is no tokenizer in the gateway: prompts are counted by their length and, where that does not decide, by the engine"},
		{"--reasoning-parser --tool-call-parser --mcp-config-path", "answers pass as the engine wrote them: give the parser to the engine"},
		{"--backend", "the kind of engine is --engine"},
		{"--history-backend --oracle-wallet-path --oracle-tns-alias --oracle-connect-descriptor --oracle-dsn --oracle-username --oracle-password --oracle-pool-min --oracle-pool-max --oracle-pool-timeout-secs --postgres-db-url --postgres-pool-max --redis-url --redis-pool-max --redis-retention-days",
			"no text of prompts or answers is stored"},
		{"--client-cert-path --client-key-path", "there are no client certificates towards engines; a key is models[].nodes[].key of a file"},
		{"--ca-cert-paths", "who vouches for engines is worker_ca of a file"},
		{"--tls-cert-path --tls-key-path", "the certificate of the clients' listener is tls of a file"},
		{"--enable-trace --otlp-traces-endpoint", "there are no traces; metrics go to a collector with telemetry.otlp of a file"},
		{"--control-plane-api-keys --control-plane-audit-enabled --jwt-issuer --jwt-audience --jwt-jwks-uri --jwt-role-mapping",
			"nothing can be changed over HTTP: nodes and tenants are of a file, read again on SIGHUP"},
		{"--vllm-pd-disaggregation --kv-connector --vllm-discovery-address", "say --pd-disaggregation with --engine vllm-mooncake, or --engine vllm-nixl and --lease"},
	} {
		for flag := range strings.FieldsSeq(group.flags) {
			if flag == name {
				return group.why
			}
		}
	}
	return ""
}
