package upstream

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// told is a number in what an engine says about itself. One that is missing, null,
// negative or no whole number is unknown; wrong says that something was there.
type told struct {
	Count
	wrong bool
}

// UnmarshalJSON never fails: adapters live with what newer engines say.
func (t *told) UnmarshalJSON(b []byte) error {
	n, err := strconv.ParseInt(string(b), 10, 64)
	*t = told{Count: Count{N: n, Known: err == nil && n >= 0}}
	if !t.Known {
		t.N, t.wrong = 0, string(b) != "null"
	}
	return nil
}

// modelList is the answer of /v1/models.
type modelList struct {
	Data []struct {
		ID      string   `json:"id"`
		Aliases []string `json:"aliases"`
		Root    string   `json:"root"`
		Parent  string   `json:"parent"`
		Window  told     `json:"max_model_len"`
		Meta    struct {
			Params told   `json:"n_params"`
			Size   told   `json:"size"`
			Kind   string `json:"ftype"`
		} `json:"meta"`
	} `json:"data"`
}

// readModels takes the names out of /v1/models, and the least window.
func (i *Info) readModels(seen []Seen) (there bool, weights string, err error) {
	var v modelList
	there, err = readJSON(seen, "/v1/models", &v)
	if !there || err != nil {
		return there, "", err
	}
	for _, m := range v.Data {
		for _, name := range append([]string{m.ID}, m.Aliases...) {
			if name != "" && !slices.Contains(i.Models, name) {
				i.Models = append(i.Models, name)
			}
		}
		i.Window = least(i.Window, m.Window.Count)
		if m.Parent == "" {
			weights += fmt.Sprint(m.Root, m.Meta.Params.N, m.Meta.Size.N, m.Meta.Kind, ";")
		}
	}
	if i.Model == "" && len(i.Models) > 0 {
		i.Model = i.Models[0]
	}
	return true, weights, nil
}

// serverInfo is what SGLang and our own workers say at /server_info. The decode leg of
// SGLang says it too; a mini load balancer says it of its legs.
type serverInfo struct {
	Mode        *string `json:"disaggregation_mode"`
	Model       string  `json:"served_model_name"`
	Version     string  `json:"version"`
	Incarnation string  `json:"incarnation"`
	Window      told    `json:"context_length"`
	Pool        told    `json:"max_total_num_tokens"`
	MaxInput    told    `json:"max_req_input_len"`
	PageSize    told    `json:"page_size"`
	Slots       told    `json:"max_running_requests"`

	ModelPath    string          `json:"model_path"`
	WeightsName  string          `json:"weight_version"`
	Checksum     string          `json:"model_checksum"`
	Revision     string          `json:"revision"`
	Quantization string          `json:"quantization"`
	CacheType    string          `json:"kv_cache_dtype"`
	Startup      json.RawMessage `json:"startup_time"`
	Seed         json.RawMessage `json:"random_seed"`

	Truncates    bool            `json:"allow_auto_truncate"`
	LogsRequests bool            `json:"log_requests"`
	Hierarchical bool            `json:"enable_hierarchical_cache"`
	LMCache      bool            `json:"enable_lmcache"`
	Processors   bool            `json:"enable_custom_logit_processor"`
	APIKey       *string         `json:"api_key"`
	AdminKey     *string         `json:"admin_api_key"`
	Manager      bool            `json:"router_manager"`
	Prefill      json.RawMessage `json:"prefill"`
	Decode       json.RawMessage `json:"decode"`

	States []struct {
		Pool   told `json:"max_total_num_tokens"`
		Memory struct {
			Capacity told `json:"token_capacity"`
		} `json:"memory_usage"`
		Slots told `json:"effective_max_running_requests_per_dp"`
	} `json:"internal_states"`
}

// readSGLang reads what SGLang and our own workers say.
func (i *Info) readSGLang(d Dialect, seen []Seen) error {
	var v serverInfo
	there, err := readJSON(seen, "/server_info", &v)
	if err == nil && !there {
		there, err = readJSON(seen, "/get_server_info", &v)
	}
	switch {
	case err != nil:
		return err
	case !there:
		return errNoEngine
	}
	for _, n := range []told{v.Window, v.Pool, v.MaxInput, v.PageSize} {
		if n.wrong && d == Bulkhead {
			return fmt.Errorf("upstream: read info: /server_info: a number is none: %w", ErrMalformed)
		}
	}
	i.Model, i.Version, i.Incarnation = v.Model, v.Version, v.Incarnation
	i.Window, i.Pool, i.MaxInput, i.PageSize, i.Slots = v.Window.Count, v.Pool.Count, v.MaxInput.Count, v.PageSize.Count, v.Slots.Count
	if v.Version == "unknown" {
		i.Version = ""
	}
	if d == Bulkhead {
		i.Role = role(v.Mode)
		i.Models = []string{v.Model}
		i.Epoch = epochOf(v.Model, v.Version, v.Incarnation, fmt.Sprint(i.PageSize, i.Pool))
		return nil
	}
	switch {
	case v.Prefill != nil || v.Decode != nil:
		i.Router = "SGLang's mini load balancer"
	case v.Manager:
		i.Router = "SGLang's router"
	}
	return i.restOfSGLang(&v, seen)
}

// role reads SGLang's mode. One that is there and null is plain.
func role(mode *string) Role {
	switch {
	case mode == nil:
		return ""
	case *mode == "null":
		return Plain
	}
	return Role(*mode)
}

// restOfSGLang reads what SGLang says besides.
func (i *Info) restOfSGLang(v *serverInfo, seen []Seen) error {
	i.Role = role(v.Mode)
	slots := Count{}
	for _, s := range v.States {
		// One rank serves one request: the least pool decides, and never the sum.
		i.Pool = least(i.Pool, least(s.Pool.Count, s.Memory.Capacity.Count))
		slots = plus(slots, s.Slots.Count)
	}
	if slots.Known {
		i.Slots = slots
	}
	window := i.Window
	i.Window = Count{}
	if i.Model != "" {
		i.Models = []string{i.Model}
	}
	if _, _, err := i.readModels(seen); err != nil {
		return err
	}
	i.Window = least(i.Window, window)

	var info struct {
		Path    string `json:"model_path"`
		Weights string `json:"weight_version"`
	}
	there, err := readJSON(seen, "/model_info", &info)
	if err == nil && !there {
		_, err = readJSON(seen, "/get_model_info", &info)
	}
	if err != nil {
		return err
	}
	if err := i.readLoads(seen); err != nil {
		return err
	}
	seed := string(v.Seed)
	if started := string(v.Startup); started != "" && started != "null" && started != "{}" {
		i.Incarnation = epochOf("sglang", started, seed)
	}
	i.Epoch = epochOf(strings.Join(i.Models, ","), i.Version, v.ModelPath, info.Path, v.WeightsName, info.Weights,
		v.Checksum, v.Revision,
		v.Quantization, v.CacheType, seed, i.Incarnation, fmt.Sprint(i.PageSize, i.Pool))
	for _, f := range []struct {
		on       bool
		sentence string
	}{
		{v.Truncates, "automatic truncation is on: a prompt that is too long is cut without a word"},
		{v.LogsRequests, "the engine logs requests"},
		{v.APIKey != nil || v.AdminKey != nil, "the engine tells its own keys at /server_info to whoever reaches it"},
		{v.Hierarchical || v.LMCache, "a cache below the engine's own is on: whether it keeps cache domains apart is not known"},
		{v.Processors, "requests may carry code (custom logit processors)"},
		{i.MaxInput.Known && i.Window.Known && i.MaxInput.N+windowSlack < i.Window.N, "the pool is smaller than the window: prompts between the two fail late"},
	} {
		if f.on {
			i.find(f.sentence)
		}
	}
	return nil
}

// windowSlack is more than SGLang keeps back of its window for itself, in tokens.
const windowSlack = 16

// readLoads reads SGLang's load, rank by rank.
func (i *Info) readLoads(seen []Seen) error {
	var v struct {
		Loads []struct {
			Running told `json:"num_running_reqs"`
			Waiting told `json:"num_waiting_reqs"`
			Pool    told `json:"max_total_num_tokens"`
		} `json:"loads"`
	}
	if _, err := readJSON(seen, "/v1/loads?include=core", &v); err != nil {
		return err
	}
	for _, l := range v.Loads {
		i.Running, i.Waiting = plus(i.Running, l.Running.Count), plus(i.Waiting, l.Waiting.Count)
		i.Pool = least(i.Pool, l.Pool.Count)
	}
	return nil
}

// readVLLM reads what vLLM says.
func (i *Info) readVLLM(d Dialect, r Role, seen []Seen) error {
	there, weights, err := i.readModels(seen)
	if err != nil {
		return err
	}
	metrics, measured := at(seen, "/metrics")
	if !there || !measured {
		return errNoEngine
	}
	var version struct {
		Version string `json:"version"`
	}
	if _, err := readJSON(seen, "/version", &version); err != nil {
		return err
	}
	i.Version = version.Version
	layout := i.readCacheConfig(metrics)
	if i.Window.Known {
		i.MaxInput = least(Count{N: max(0, i.Window.N-1), Known: true}, i.Pool)
	}
	if d == VLLMMooncake && r == PrefillRole {
		if err := i.readBootstrap(seen); err != nil {
			return err
		}
	}
	if _, open := at(seen, "/server_info?config_format=json"); open {
		i.find("the development endpoints are open: whoever reaches the engine controls it")
	}
	i.Epoch = epochOf(strings.Join(i.Models, ","), weights, i.Version, i.Incarnation, layout)
	return nil
}

// readBootstrap reads the engine id at Mooncake's bootstrap address. Several ranks have
// several ids, of which none can be chosen.
func (i *Info) readBootstrap(seen []Seen) error {
	var v map[string]struct {
		Engine string `json:"engine_id"`
	}
	there, err := readJSON(seen, "/query", &v)
	if err != nil || !there {
		return err
	}
	if len(v) != 1 {
		i.find("the bootstrap server knows several engines: the transfer needs exactly one")
		return nil
	}
	for _, e := range v {
		i.EngineID = e.Engine
	}
	return nil
}

// readCacheConfig reads pool and load out of vLLM's metrics, and returns the layout of
// its cache as text. One block of the pool is never used; of several engines behind one
// server the least pool decides.
func (i *Info) readCacheConfig(metrics []byte) (layout string) {
	started := ""
	first := 0.0
	samples(metrics, func(s sample) {
		switch {
		case s.name == "vllm:cache_config_info":
			blocks, size := s.count("num_gpu_blocks"), s.count("block_size")
			i.PageSize = least(i.PageSize, size)
			if blocks.Known && size.Known && blocks.N > 0 && size.N > 0 && blocks.N < 1<<40 && size.N < 1<<20 {
				i.Pool = least(i.Pool, Count{N: (blocks.N - 1) * size.N, Known: true})
			} else if tokens := s.count("kv_cache_size_tokens"); tokens.Known {
				i.Pool = least(i.Pool, tokens)
			}
			if strings.HasPrefix(s.label("prefix_caching_hash_algo"), "xxhash") {
				i.find("prefixes are hashed with xxhash: a tenant could construct a collision")
			}
			if backend := s.label("kv_offloading_size"); backend != "" && backend != "None" {
				i.find("a cache below the engine's own is on: whether it keeps cache domains apart is not known")
			}
			layout += fmt.Sprint(blocks, size, s.label("cache_dtype"), s.label("prefix_caching_hash_algo"), ";")
		case slices.Contains(vllmAlarms[:], s.name):
			i.alarm(s)
		case s.name == "vllm:num_requests_running":
			i.Running = plus(i.Running, s.whole())
		case s.name == "vllm:num_requests_waiting":
			i.Waiting = plus(i.Waiting, s.whole())
		case strings.HasPrefix(s.name, "vllm:") && strings.HasSuffix(s.name, "_created"):
			// The earliest of these is when the engine's life began; it is told in parts of
			// a second, so no two lives share it.
			if x, err := strconv.ParseFloat(s.value, 64); err == nil && x > 0 && (started == "" || x < first) {
				started, first = s.value, x
			}
		}
	})
	if started != "" {
		i.Incarnation = epochOf("vllm", started)
	}
	return layout
}

// vllmAlarms are the counters of blocks that were given away before decode had read them,
// and of transfers that failed. It is read only.
var vllmAlarms = [...]string{"vllm:nixl_num_kv_expired_reqs_total", "vllm:nixl_num_notifications_after_expiry_total",
	"vllm:nixl_num_failed_transfers_total", "vllm:nixl_num_failed_notifications_total"}

// alarm adds a sample to its alarm: an engine of several ranks has one for each.
func (i *Info) alarm(s sample) {
	n := s.whole()
	if !n.Known {
		return
	}
	for j := range i.Alarms {
		if i.Alarms[j].Name == s.name {
			i.Alarms[j].Count += n.N
			return
		}
	}
	i.Alarms = append(i.Alarms, Alarm{Name: s.name, Count: n.N})
}

// readLlama reads what llama.cpp says.
func (i *Info) readLlama(seen []Seen) error {
	var v struct {
		Role     string `json:"role"`
		Defaults struct {
			Window told `json:"n_ctx"`
		} `json:"default_generation_settings"`
		Slots    told   `json:"total_slots"`
		Alias    string `json:"model_alias"`
		Path     string `json:"model_path"`
		Build    string `json:"build_info"`
		Marker   string `json:"media_marker"`
		Template string `json:"chat_template"`
		Props    bool   `json:"endpoint_props"`
	}
	there, err := readJSON(seen, "/props", &v)
	switch {
	case err != nil:
		return err
	case !there:
		return errNoEngine
	}
	i.Model, i.Version, i.Slots = v.Alias, v.Build, v.Slots.Count
	_, weights, err := i.readModels(seen)
	if err != nil {
		return err
	}
	if v.Role == "router" {
		i.Router = "llama-server in router mode"
	}
	// n_ctx is what one request can have, whether the slots share a buffer or not.
	i.Window, i.Pool = v.Defaults.Window.Count, v.Defaults.Window.Count
	if i.Window.Known && i.Window.N > 0 {
		i.MaxInput = Count{N: i.Window.N - 1, Known: true}
	}
	if v.Marker != "" {
		// It is drawn at the start of each process.
		i.Incarnation = epochOf("llama.cpp", v.Marker)
	}
	i.Epoch = epochOf(strings.Join(i.Models, ","), v.Path, weights, v.Build, v.Template, i.Incarnation, fmt.Sprint(i.Window, i.Slots))
	if v.Props {
		i.find("settings can be changed at /props by whoever reaches the engine")
	}
	var slots []struct {
		Busy bool `json:"is_processing"`
	}
	if open, err := readJSON(seen, "/slots", &slots); err != nil {
		return err
	} else if open {
		i.find("slots are exposed: they tell what other requests are like")
		i.Running = Count{Known: true}
		for _, s := range slots {
			if s.Busy {
				i.Running.N++
			}
		}
	}
	if metrics, open := at(seen, "/metrics"); open {
		samples(metrics, func(s sample) {
			switch s.name {
			case "llamacpp:requests_processing":
				i.Running = s.whole()
			case "llamacpp:requests_deferred":
				i.Waiting = s.whole()
			}
		})
	}
	return nil
}

// readHosted reads what a hosted API says. Its windows are configured, not believed.
func (i *Info) readHosted(seen []Seen) error {
	if _, _, err := i.readModels(seen); err != nil {
		return err
	}
	i.Window = Count{}
	names := slices.Clone(i.Models)
	slices.Sort(names)
	i.Epoch = epochOf(names...)
	return nil
}

// readWorkers finds a router by the list of workers that only a router has: sglang-router,
// smg and vllm-router answer it, in front of pairs and of plain engines, and no engine does.
func (i *Info) readWorkers(seen []Seen) {
	body, ok := at(seen, "/workers")
	if !ok {
		return
	}
	var v struct {
		Workers []json.RawMessage `json:"workers"`
		URLs    []json.RawMessage `json:"urls"`
	}
	if json.Unmarshal(body, &v) == nil && (v.Workers != nil || v.URLs != nil) && i.Router == "" {
		i.Router = "it lists workers of its own"
	}
}
