package upstream

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func seen(pairs ...string) []Seen {
	var out []Seen
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, Seen{Path: pairs[i], Status: 200, Body: []byte(pairs[i+1])})
	}
	return out
}

// inspect reads what an engine said.
func inspect(t *testing.T, d Dialect, r Role, s []Seen) Info {
	t.Helper()
	i, err := ReadInfo(d, r, s)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

const workerInfo = `{"disaggregation_mode":"prefill","served_model_name":"recall","context_length":32768,"page_size":64,"max_total_num_tokens":16384,"max_req_input_len":16000,"version":"1","incarnation":"ab","pages_free":3}`

func TestInfoOfWorkers(t *testing.T) {
	p := inspect(t, Bulkhead, PrefillRole, seen("/server_info", workerInfo))
	if p.Role != PrefillRole || p.Pool != tokens(16384) || p.MaxInput != tokens(16000) || p.Window != tokens(32768) || p.PageSize.N != 64 || p.Incarnation != "ab" || p.Model != "recall" || p.Epoch == "" {
		t.Fatalf("%+v", p)
	}
	if i := inspect(t, Bulkhead, PrefillRole, seen("/server_info", `{"context_length":null}`)); i.Window.Known || i.Pool.Known {
		t.Errorf("null and absent are unknown: %+v", i)
	}
	for _, bad := range []string{``, `[]`, `{"page_size":"x"}`, `{"max_total_num_tokens":-1}`, `{"page_size":1.5}`} {
		if _, err := ReadInfo(Bulkhead, PrefillRole, seen("/server_info", bad)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	d := p
	d.Role, d.Incarnation = DecodeRole, "cd"
	if err := Match(Bulkhead, "recall", p, d); err != nil {
		t.Fatalf("a sound pair: %v", err)
	}
	for name, change := range map[string]func(p, d *Info){
		"swapped roles":     func(p, d *Info) { p.Role, d.Role = d.Role, p.Role },
		"two prefills":      func(p, d *Info) { d.Role = PrefillRole },
		"prefill's model":   func(p, d *Info) { p.Models = []string{"other"} },
		"decode's model":    func(p, d *Info) { d.Models = nil },
		"page sizes":        func(p, d *Info) { d.PageSize.N = 16 },
		"unknown page size": func(p, d *Info) { p.PageSize = Count{}; d.PageSize = Count{} },
		"versions":          func(p, d *Info) { d.Version = "2" },
		"unknown version":   func(p, d *Info) { d.Version = "" },
		"one server":        func(p, d *Info) { d.Incarnation = p.Incarnation },
		"a router":          func(p, d *Info) { d.Router = "x" },
	} {
		p, d := p, d
		change(&p, &d)
		if Match(Bulkhead, "recall", p, d) == nil {
			t.Errorf("%s: matched", name)
		}
	}
}

// TestInfoOfSGLang reads what real pairs of two versions said of themselves.
func TestInfoOfSGLang(t *testing.T) {
	for _, v := range []string{"0.5.19", "0.5.20"} {
		dir := "sglang/" + v + "/"
		leg := func(name string, r Role) Info {
			return inspect(t, SGLangPD, r, []Seen{
				{"/server_info", 200, recordedFile(t, dir+"server_info-"+name+".json")},
				{"/v1/models", 200, recordedFile(t, dir+"models.json")},
				{"/model_info", 200, recordedFile(t, dir+"model_info.json")},
				{"/v1/loads?include=core", 200, recordedFile(t, dir+"loads-"+name+".json")},
				{"/workers", 404, []byte(`{"detail":"Not Found"}`)},
			})
		}
		p, d := leg("prefill", PrefillRole), leg("decode", DecodeRole)
		if p.Role != PrefillRole || p.Model != "smol" || !slices.Equal(p.Models, []string{"smol"}) || p.Version != v || p.Window != tokens(4096) || p.Pool != tokens(512) ||
			p.MaxInput != tokens(506) || p.PageSize != tokens(1) || p.Slots != tokens(4) || p.Running != tokens(0) || p.Waiting != tokens(0) || p.Router != "" {
			t.Errorf("%s: prefill %+v", v, p)
		}
		if d.Role != DecodeRole || d.Pool != tokens(4096) || d.MaxInput != tokens(4090) || len(d.Findings) != 0 || d.Epoch == p.Epoch {
			t.Errorf("%s: decode %+v", v, d)
		}
		// The incident's condition: prefill takes 506 tokens, decode 4090.
		if !slices.ContainsFunc(p.Findings, func(s string) bool { return strings.Contains(s, "pool is smaller than the window") }) {
			t.Errorf("%s: findings %q", v, p.Findings)
		}
		if err := Match(SGLangPD, "smol", p, d); err != nil {
			t.Errorf("%s: %v", v, err)
		}
		if f := PairFindings(p, d); len(f) != 2 || !strings.Contains(f[0], "506") || !strings.Contains(f[0], "4090") || !strings.Contains(f[1], "512") {
			t.Errorf("%s: findings of the pair %q", v, f)
		}
		for name, served := range map[string]string{"another model": "other", "no model": ""} {
			if Match(SGLangPD, served, p, d) == nil {
				t.Errorf("%s matched", name)
			}
		}
		if Match(SGLangPD, "smol", d, p) == nil || Match(SGLang, "smol", Info{}, d) == nil {
			t.Error("a leg in the wrong place matched")
		}
	}
}

// TestInfoOfSGLangFindings reads dangerous set-ups, other lives, ranks and old names.
func TestInfoOfSGLangFindings(t *testing.T) {
	base := `"served_model_name":"m","version":"1","page_size":1,"max_total_num_tokens":100,"max_req_input_len":94,"context_length":100`
	read := func(more string) Info {
		return inspect(t, SGLang, Plain, seen("/server_info", `{`+base+more+`}`))
	}
	quiet := read(``)
	if len(quiet.Findings) != 0 || quiet.Incarnation != "" || quiet.Role != "" {
		t.Errorf("nothing to find: %+v", quiet)
	}
	for more, want := range map[string]string{
		`,"allow_auto_truncate":true`: "truncation", `,"log_requests":true`: "logs", `,"api_key":"sk-planted"`: "keys", `,"admin_api_key":"sk-planted"`: "keys",
		`,"enable_hierarchical_cache":true`: "cache below", `,"enable_lmcache":true`: "cache below", `,"enable_custom_logit_processor":true`: "code",
		`,"prefill":[{"a":1}],"decode":[]`: "router",
	} {
		i := read(more)
		if len(i.Findings) != 1 || !strings.Contains(i.Findings[0], want) || strings.Contains(i.Findings[0], "planted") {
			t.Errorf("%s: %q", more, i.Findings)
		}
	}
	a, b := read(`,"startup_time":{"load":1.25},"random_seed":7`), read(`,"startup_time":{"load":1.5},"random_seed":7`)
	if a.Incarnation == "" || a.Incarnation == b.Incarnation || a.Epoch == b.Epoch || read(`,"random_seed":7`).Incarnation != "" {
		t.Errorf("two lives: %+v, %+v", a, b)
	}
	if read(`,"startup_time":{"load":1.25},"random_seed":7`).Epoch != a.Epoch {
		t.Error("one life read twice has two epochs")
	}
	if read(`,"weight_version":"2"`).Epoch == quiet.Epoch {
		t.Error("other weights, the same epoch")
	}
	ranks := read(`,"internal_states":[{"memory_usage":{"token_capacity":80},"effective_max_running_requests_per_dp":4},{"max_total_num_tokens":60,"effective_max_running_requests_per_dp":4}]`)
	if ranks.Pool != tokens(60) || ranks.Slots != tokens(8) {
		t.Errorf("ranks: the least pool, never the sum: %+v", ranks)
	}
	old := inspect(t, SGLang, Plain, append(seen("/get_server_info", `{`+base+`,"disaggregation_mode":"null"}`, "/v1/models", `{"data":[{"id":"m","max_model_len":90},{"id":"adapter","parent":"m","max_model_len":80}]}`),
		Seen{Path: "/server_info", Status: 404, Body: []byte(`{}`)}))
	if old.Role != Plain || old.Window != tokens(80) || !slices.Equal(old.Models, []string{"m", "adapter"}) || Match(SGLang, "adapter", Info{}, old) != nil {
		t.Errorf("old names: %+v", old)
	}
	small := inspect(t, SGLang, Plain, seen("/server_info", `{"internal_states":[],"version":"unknown"}`))
	if small.Pool.Known || small.MaxInput.Known || small.Version != "" {
		t.Errorf("what is missing is unknown: %+v", small)
	}
	odd := inspect(t, SGLang, Plain, seen("/server_info", `{"page_size":1.5,"max_total_num_tokens":-1}`))
	if odd.PageSize.Known || odd.Pool.Known {
		t.Errorf("what is no count is unknown: %+v", odd)
	}
	if _, err := ReadInfo(SGLang, Plain, []Seen{{"/server_info", 500, []byte(`{}`)}}); err == nil {
		t.Error("an engine that says nothing was read")
	}
}

func TestInfoOfVLLM(t *testing.T) {
	dir := "vllm/0.32.0/"
	looks := []Seen{
		{"/v1/models", 200, recordedFile(t, dir+"models.json")},
		{"/version", 200, recordedFile(t, dir+"version.json")},
		{"/metrics", 200, recordedFile(t, dir+"metrics.txt")},
		{"/server_info?config_format=json", 404, nil},
	}
	i := inspect(t, VLLM, Plain, looks)
	if i.Model != "smol" || i.Version != "0.32.0" || i.Window != tokens(8192) || i.PageSize != tokens(128) || i.Pool != tokens(363*128) || i.MaxInput != tokens(8191) ||
		i.Running != tokens(0) || i.Waiting != tokens(0) || len(i.Findings) != 0 || i.Incarnation == "" || i.Epoch == "" || i.Role != "" || i.Slots.Known {
		t.Errorf("%+v", i)
	}
	if again := inspect(t, VLLM, Plain, looks); again.Epoch != i.Epoch || again.Incarnation != i.Incarnation {
		t.Error("one engine read twice has two epochs")
	}
	other := slices.Clone(looks)
	other[0].Body = []byte(strings.NewReplacer(`"created":17`, `"created":18`, `modelperm-`, `modelperm-x`).Replace(string(looks[0].Body)))
	if inspect(t, VLLM, Plain, other).Epoch != i.Epoch {
		t.Error("what is drawn for each answer is in the epoch")
	}
	other[2].Body = []byte(strings.ReplaceAll(string(looks[2].Body), "_created{engine=\"0\",model_name=\"smol\"} 1.79", "_created{engine=\"0\",model_name=\"smol\"} 1.78"))
	if life := inspect(t, VLLM, Plain, other); life.Incarnation == i.Incarnation || life.Epoch == i.Epoch {
		t.Error("two lives look the same")
	}
	other[2].Body = []byte(`vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100",prefix_caching_hash_algo="xxhash_cbor",x="a\"} 2 {"} 1.0
vllm:cache_config_info{engine="1",block_size="16",num_gpu_blocks="80"} 1
vllm:num_requests_running{engine="0"} 2.0
vllm:num_requests_running{engine="1"} 3.0
vllm:num_requests_waiting{engine="0"} NaN
vllm:nixl_num_kv_expired_reqs_total{engine="0"} 1.0
vllm:nixl_num_kv_expired_reqs_total{engine="1"} 2.0 1796134862000
`)
	two := inspect(t, VLLM, Plain, append(other, Seen{"/server_info?config_format=json", 200, []byte(`{}`)}))
	if two.Pool != tokens(79*16) || two.Running != tokens(5) || two.Waiting.Known || len(two.Findings) != 2 || !strings.Contains(two.Findings[0], "xxhash") || !strings.Contains(two.Findings[1], "development") ||
		two.Incarnation != "" || !slices.Equal(two.Alarms, []Alarm{{"vllm:nixl_num_kv_expired_reqs_total", 3}}) || two.MaxInput != tokens(79*16) {
		t.Errorf("two engines behind one server: %+v", two)
	}
	other[2].Body = []byte("vllm:cache_config_info{block_size=\"None\",num_gpu_blocks=\"None\"} 1\n")
	if none := inspect(t, VLLM, Plain, other); none.Pool.Known || none.PageSize.Known || none.Running.Known {
		t.Errorf("what is missing is unknown: %+v", none)
	}
	for _, missing := range []string{"/v1/models", "/metrics"} {
		if _, err := ReadInfo(VLLM, Plain, slices.DeleteFunc(slices.Clone(looks), func(s Seen) bool { return s.Path == missing })); err == nil {
			t.Errorf("an engine without %s was read", missing)
		}
	}
	if alarms := inspect(t, VLLMNixl, DecodeRole, append(slices.Clone(looks[:2]), Seen{"/metrics", 200, recordedFile(t, dir+"nixl-decode-metrics.txt")})).Alarms; len(alarms) != 4 || alarms[0].Count != 1 {
		t.Errorf("alarms of a decode leg: %+v", alarms)
	}
}

func TestMatchVLLM(t *testing.T) {
	looks := seen("/v1/models", `{"data":[{"id":"m","max_model_len":100}]}`, "/version", `{"version":"1"}`, "/metrics", `vllm:cache_config_info{block_size="16",num_gpu_blocks="9"} 1`)
	p := inspect(t, VLLMNixl, PrefillRole, looks)
	if err := Match(VLLMNixl, "m", p, p); err != nil {
		t.Errorf("what vLLM does not tell cannot differ: %v", err)
	}
	query := func(body string) Info {
		return inspect(t, VLLMMooncake, PrefillRole, append(slices.Clone(looks), seen("/query", body)...))
	}
	one := query(`{"0":{"engine_id":"e-1","worker_addr":{"0":{"0":"tcp://10.0.0.1:1"}}}}`)
	if one.EngineID != "e-1" || Match(VLLMMooncake, "m", one, p) != nil {
		t.Errorf("%+v", one)
	}
	if several := query(`{"0":{"engine_id":"a"},"1":{"engine_id":"b"}}`); several.EngineID != "" || len(several.Findings) != 1 || Match(VLLMMooncake, "m", several, p) == nil {
		t.Errorf("%+v", several)
	}
	d := p
	d.Version = "2"
	if Match(VLLMNixl, "m", p, d) == nil {
		t.Error("versions differ")
	}
	d.Version = ""
	if err := Match(VLLMNixl, "m", p, d); err != nil {
		t.Errorf("a version that is not told: %v", err)
	}
	d = p
	d.PageSize = tokens(32)
	if Match(VLLMNixl, "m", p, d) == nil {
		t.Error("block sizes differ")
	}
}

func TestInfoOfLlama(t *testing.T) {
	epochs := map[string]bool{}
	for _, v := range []string{"10434", "11549"} {
		dir := "llamacpp/" + v + "/"
		looks := []Seen{
			{"/props", 200, recordedFile(t, dir+"props.json")}, {"/v1/models", 200, recordedFile(t, dir+"models.json")},
			{"/slots", 200, recordedFile(t, dir+"slots.json")}, {"/metrics", 200, recordedFile(t, dir+"metrics.txt")}, {"/workers", 404, nil},
		}
		i := inspect(t, LlamaCPP, Plain, looks)
		if i.Model != "smol" || !slices.Equal(i.Models, []string{"smol"}) || i.Window != tokens(2048) || i.Pool != tokens(2048) || i.MaxInput != tokens(2047) || i.Slots != tokens(2) ||
			i.Running != tokens(0) || i.Waiting != tokens(0) || i.Version == "" || i.Incarnation == "" || i.Router != "" {
			t.Errorf("%s: %+v", v, i)
		}
		if f := strings.Join(i.Findings, ";"); !strings.Contains(f, "slots are exposed") || !strings.Contains(f, "/props") {
			t.Errorf("%s: findings %q", v, i.Findings)
		}
		if inspect(t, LlamaCPP, Plain, looks).Epoch != i.Epoch || Match(LlamaCPP, "smol", Info{}, i) != nil || Match(LlamaCPP, "other", Info{}, i) == nil {
			t.Errorf("%s: %+v", v, i)
		}
		epochs[i.Epoch], epochs[i.Incarnation] = true, true
		bare := inspect(t, LlamaCPP, Plain, looks[:2])
		if len(bare.Findings) != 1 || bare.Running.Known {
			t.Errorf("%s: without slots %+v", v, bare)
		}
	}
	if len(epochs) != 4 {
		t.Errorf("two engines share an identity: %v", epochs)
	}
	router := inspect(t, LlamaCPP, Plain, seen("/props", `{"role":"router"}`))
	if router.Router == "" || router.Window.Known || len(router.Findings) != 1 {
		t.Errorf("a router: %+v", router)
	}
	busy := inspect(t, LlamaCPP, Plain, seen("/props", `{}`, "/slots", `[{"is_processing":true},{"is_processing":false}]`))
	if busy.Running != tokens(1) || busy.Waiting.Known {
		t.Errorf("slots: %+v", busy)
	}
}

func TestInfoOfHosted(t *testing.T) {
	i := inspect(t, OpenAI, Plain, seen("/v1/models", `{"data":[{"id":"b","max_model_len":10},{"id":"a"}]}`))
	if i.Window.Known || i.Pool.Known || Match(OpenAI, "a", Info{}, i) != nil || Match(OpenAI, "c", Info{}, i) == nil {
		t.Errorf("%+v", i)
	}
	swapped := inspect(t, OpenAI, Plain, seen("/v1/models", `{"data":[{"id":"a"},{"id":"b"}]}`))
	if swapped.Epoch != i.Epoch {
		t.Error("the order of the list is in the epoch")
	}
	if none := inspect(t, OpenAI, Plain, nil); Match(OpenAI, "any", Info{}, none) != nil {
		t.Error("a hosted API need not list its models")
	}
}

// TestRouters finds routers by what only they answer, also where they hide the engine.
func TestRouters(t *testing.T) {
	looks := seen("/v1/models", `{"data":[{"id":"m","max_model_len":100}]}`, "/metrics", ``)
	for body, want := range map[string]bool{
		`{"workers":[{"id":"1","url":"http://10.0.0.1:30000"}],"total":1}`: true, `{"workers":[],"stats":{}}`: true, `{"urls":["http://10.0.0.1:1"]}`: true,
		`{"detail":"Not Found"}`: false, `[]`: false, ``: false, `{"workers":null}`: false,
	} {
		i := inspect(t, VLLM, Plain, append(slices.Clone(looks), seen("/workers", body)...))
		if (i.Router != "") != want || want != (len(i.Findings) == 1) || strings.Contains(strings.Join(i.Findings, ""), "10.0.0.1") {
			t.Errorf("%s: router %q, findings %q", body, i.Router, i.Findings)
		}
	}
	workers := `{"workers":[{"url":"http://127.0.0.1:1","worker_type":"prefill"}],"total":1}`
	for name, tc := range map[string]struct {
		d Dialect
		s []Seen
	}{
		"sglang-router":         {SGLangPD, append(seen("/get_server_info", `{"router_manager":true,"routers_count":1,"workers_count":2}`, "/v1/models", `{"data":[{"id":"m","owned_by":"local"}]}`, "/workers", workers), Seen{"/server_info", 404, nil})},
		"its manager":           {SGLang, seen("/get_server_info", `{"router_manager":true}`)},
		"smg":                   {SGLangPD, seen("/get_server_info", `{"served_model_name":"m"}`, "/workers", workers)},
		"mini_lb":               {SGLangPD, seen("/get_server_info", `{"internal_states":[{}],"prefill":[{"served_model_name":"m"}],"decode":[{"served_model_name":"m"}]}`)},
		"vllm-router":           {VLLMNixl, []Seen{{"/metrics", 405, nil}, {"/v1/models", 200, []byte(`{"data":[{"id":"m"}]}`)}, {"/workers", 200, []byte(workers)}}},
		"in front of llama.cpp": {LlamaCPP, seen("/workers", workers)},
	} {
		i := inspect(t, tc.d, PrefillRole, tc.s)
		if i.Router == "" || len(i.Findings) != 1 || i.Pool.Known {
			t.Errorf("%s: %+v", name, i)
		}
		i.Models, i.Role = []string{"m"}, PrefillRole
		if d := i; Match(tc.d, "m", i, d) == nil && tc.d.Traits().Legs != One {
			t.Errorf("%s: taken for a leg", name)
		}
	}
}

func TestLooks(t *testing.T) {
	for _, d := range Dialects() {
		for _, r := range []Role{PrefillRole, DecodeRole, Plain} {
			paths := map[string]bool{}
			looks := Looks(d, r)
			for i, l := range looks {
				if paths[l.Path] || !strings.HasPrefix(l.Path, "/") || i == 0 && l.Optional == Instead {
					t.Errorf("%v %s: look %+v", d, r, l)
				}
				paths[l.Path] = true
				if l.Bootstrap && !d.Traits().Bootstrap {
					t.Errorf("%v has no bootstrap address", d)
				}
			}
			if len(looks) == 0 {
				t.Errorf("%v is asked nothing", d)
			}
		}
	}
}

func FuzzInfo(f *testing.F) {
	f.Add(uint8(2), []byte(workerInfo), []byte(`a{b="c"} 1`))
	f.Add(uint8(5), []byte(`{"data":[{"id":"x"}]}`), []byte(`vllm:cache_config_info{block_size="16",num_gpu_blocks="9"} 1`))
	f.Fuzz(func(t *testing.T, dialect uint8, body, metrics []byte) {
		d := Dialect(dialect) % dialects
		for _, r := range []Role{PrefillRole, Plain} {
			var all []Seen
			for _, l := range Looks(d, r) {
				b := body
				if l.Path == "/metrics" {
					b = metrics
				}
				all = append(all, Seen{l.Path, 200, b})
			}
			i, err := ReadInfo(d, r, all)
			if err == nil {
				_ = Match(d, "x", i, i)
				_ = PairFindings(i, i)
			}
		}
	})
}
