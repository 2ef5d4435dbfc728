package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Names of those who are compared.
const (
	nameDirect = "direct"
	nameAgain  = "direct again" // the A/A control
	nameNginx  = "nginx"
	nameProxy  = "bare Go proxy"
	nameFloor  = "two bare Go proxies"
	nameSGLang = "sglang-router"
	nameSMG    = "smg"
	nameVLLM   = "vllm-router"
	nameOurs   = "Bulkhead"
)

// A route is what a request goes through.
type route string

const (
	plainRoute route = "plain" // one worker
	pdRoute    route = "pd"    // a prefill and a decode worker
)

// contender is one of those who are compared.
type contender struct {
	name string
	// only is the one route that it has, if it has not both.
	only route
	// start starts a process of its own; without it requests go to the worker itself.
	start func(context.Context, *stage) (*standing, error)
}

// contenders lists them in the order of the tables.
func contenders() []contender {
	return []contender{
		{name: nameDirect},
		{name: nameAgain},
		{name: nameNginx, only: plainRoute, start: startNginx},
		{name: nameProxy, start: startOwn(nameProxy, "proxy")},
		{name: nameFloor, only: pdRoute, start: startOwn(nameFloor, "floor")},
		{name: nameSGLang, start: startRouter(nameSGLang, "launch", "--pd-disaggregation")},
		{name: nameSMG, start: startRouter(nameSMG, "launch", "--pd-disaggregation")},
		{name: nameVLLM, start: startRouter(nameVLLM, "", "--vllm-pd-disaggregation")},
		{name: nameOurs, start: startOurs},
	}
}

// stage is the legs of one row, and who stands in front of them: processes that have
// seen nothing else.
type stage struct {
	settings
	row                    *row
	dir                    string // scratch
	prefill, decode, plain string // addresses of the legs
	legs                   []*child
	stands                 []*standing
	missing                map[string]string // who is not there, and why
}

// standing is a contender that runs.
type standing struct {
	name, addr, key string
	to              target
	pids            []int // its processes; none if it has none of its own
	admin           int   // port for profiles, or 0
	stop            func() error
	done            <-chan struct{} // closed when it has ended; nil if nobody watches
	log             string
	samples         []sample
}

// errGone says that a contender ended by itself.
var errGone = errors.New("bench: it has ended")

// Limits of starting and ending.
const (
	startTime = time.Minute
	pollTime  = 20 * time.Millisecond
	askTime   = 500 * time.Millisecond
)

// set starts the legs and everybody who can stand before them, and waits until each
// answers. Who does not is missing; that is a failure only for those who are of this
// project.
func (s settings) set(ctx context.Context, r *row) (_ *stage, err error) {
	x := &stage{settings: s, row: r, missing: map[string]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, x.strike())
		}
	}()
	if x.dir, err = os.MkdirTemp("", "bulkhead-bench-"); err != nil {
		return nil, err
	}
	for role, addr := range map[string]*string{legPrefill: &x.prefill, legDecode: &x.decode, legPlain: &x.plain} {
		c, err := startChild(ctx, served{Role: role})
		if err != nil {
			return nil, err
		}
		x.legs, *addr = append(x.legs, c), c.Addr
	}
	for _, c := range contenders() {
		if c.only != "" && c.only != r.route {
			continue
		}
		stands, err := &standing{name: c.name, addr: x.worker()}, error(nil)
		if c.start != nil {
			stands, err = c.start(ctx, x)
		}
		if err == nil {
			x.stands = append(x.stands, stands)
			err = x.ready(ctx, stands)
		}
		switch {
		case err == nil:
		case ctx.Err() != nil || c.ownName():
			return nil, fmt.Errorf("bench: %s: %w", c.name, err)
		default:
			x.drop(c.name, err)
		}
	}
	return x, nil
}

// ownName says whether it is of this project, and so must be there.
func (c contender) ownName() bool {
	switch c.name {
	case nameDirect, nameAgain, nameProxy, nameFloor, nameOurs:
		return true
	}
	return false
}

// drop leaves a contender out from now on.
func (x *stage) drop(name string, why error) {
	x.missing[name] = why.Error()
	for i, s := range x.stands {
		if s.name == name {
			x.stands = append(x.stands[:i], x.stands[i+1:]...)
			if s.stop != nil {
				_ = s.stop() // it is not measured any more
			}
			return
		}
	}
}

// worker is the address of the worker that answers.
func (x *stage) worker() string {
	if x.row.route == pdRoute {
		return x.decode
	}
	return x.plain
}

// ready waits until a contender answers a small request, and notes what it consists of.
func (x *stage) ready(ctx context.Context, s *standing) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	probe := post(s.addr, s.key, chat("Are you there?", whole))
	tick := time.NewTicker(pollTime)
	defer tick.Stop()
	for {
		err := answers(probe)
		if err == nil {
			break
		}
		select {
		case <-s.done:
			return fmt.Errorf("%w: %s", errGone, s.tail())
		case <-ctx.Done():
			return fmt.Errorf("%w in %v: %s", err, startTime, s.tail())
		case <-tick.C:
		}
	}
	s.to = post(s.addr, s.key, x.row.body())
	if len(s.pids) == 1 { // the leader
		s.pids = groupOf(s.pids[0])
	}
	return nil
}

// answers makes one call.
func answers(t target) error {
	c, err := t.dial()
	if err != nil {
		return err
	}
	defer c.conn.Close()
	return c.call()
}

// tail is the last line of a contender's output.
func (s *standing) tail() string {
	b, _ := os.ReadFile(s.log)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}

// strike ends everybody.
func (x *stage) strike() error {
	var all []error
	for _, s := range x.stands {
		if s.stop != nil {
			all = append(all, s.stop())
		}
	}
	for _, c := range x.legs {
		all = append(all, c.stop())
	}
	if x.dir != "" {
		all = append(all, os.RemoveAll(x.dir))
	}
	return errors.Join(all...)
}

// launch starts a program in a process group of its own, with its output in a file.
func (x *stage) launch(ctx context.Context, name string, port int, program string, args ...string) (*standing, error) {
	log := filepath.Join(x.dir, name+".log")
	f, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = x.dir, f, f
	ownGroup(cmd)
	cmd.Cancel = func() error { killGroup(cmd.Process.Pid); return nil }
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in its output
		close(done)
	}()
	stop := func() error {
		askGroup(cmd.Process.Pid)
		limit := time.NewTimer(askTime)
		defer limit.Stop()
		select {
		case <-done:
		case <-limit.C:
		}
		killGroup(cmd.Process.Pid)
		<-done
		return nil
	}
	return &standing{name: name, addr: at(port), pids: []int{cmd.Process.Pid}, stop: stop, done: done, log: log}, nil
}

func at(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePort is a port of loopback that nobody listens at.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// freePorts are two of them, not the same one twice.
func freePorts() (a, b int, err error) {
	for a == b && err == nil {
		if a, err = freePort(); err == nil {
			b, err = freePort()
		}
	}
	return a, b, err
}

// startOwn starts a server of this program.
func startOwn(name, role string) func(context.Context, *stage) (*standing, error) {
	return func(ctx context.Context, x *stage) (*standing, error) {
		s := served{Role: role, Prefill: "http://" + x.prefill, Decode: "http://" + x.worker()}
		if x.profile != "" {
			s.Profile = filepath.Join(x.profile, x.row.id+"-"+role+".pprof")
		}
		c, err := startChild(ctx, s)
		if err != nil {
			return nil, err
		}
		return &standing{name: name, addr: c.Addr, pids: []int{c.cmd.Process.Pid}, stop: c.stop}, nil
	}
}

// program is the path of a program that is not ours.
func (x *stage) program(name string) (string, error) {
	if path := x.foreign.Programs[name]; path != "" {
		return path, nil
	}
	why := x.foreign.Missing[name]
	if why == "" {
		why = "it is not there"
	}
	return "", errors.New(why)
}

// startNginx starts nginx as one sets it up before an engine: connections are kept on
// both sides, nothing is buffered, nothing is logged.
func startNginx(ctx context.Context, x *stage) (*standing, error) {
	program, err := x.program(nameNginx)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	user := ""
	if os.Geteuid() == 0 {
		user = "user root;\n" // its workers use the scratch folder too
	}
	var temp strings.Builder
	for _, kind := range [...]string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temp, "\t%s_temp_path %s;\n", kind, filepath.Join(x.dir, "nginx-"+kind))
	}
	file := filepath.Join(x.dir, "nginx.conf")
	text := user + fmt.Sprintf(`daemon off;
worker_processes auto;
pid %[1]s/nginx.pid;
error_log stderr warn;
events { worker_connections 1024; }
http {
	access_log off;
%[2]s	client_max_body_size 64m;
	keepalive_requests 100000000;
	tcp_nodelay on;
	upstream worker {
		server %[3]s;
		keepalive 64;
		keepalive_requests 100000000;
	}
	server {
		listen %[4]s;
		location / {
			proxy_pass http://worker;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_buffering off;
			proxy_request_buffering off;
		}
	}
}
`, x.dir, temp.String(), x.worker(), at(port))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return x.launch(ctx, nameNginx, port, program, "-e", "stderr", "-p", x.dir, "-c", file)
}

// startRouter starts a router of others, as its own documents say.
func startRouter(name, command, pair string) func(context.Context, *stage) (*standing, error) {
	return func(ctx context.Context, x *stage) (*standing, error) {
		program, err := x.program(name)
		if err != nil {
			return nil, err
		}
		port, metrics, err := freePorts()
		if err != nil {
			return nil, err
		}
		var args []string
		if command != "" {
			args = append(args, command)
		}
		args = append(args, "--host", "127.0.0.1", "--port", strconv.Itoa(port), "--policy", "round_robin",
			"--prometheus-host", "127.0.0.1", "--prometheus-port", strconv.Itoa(metrics), "--worker-startup-check-interval", "1")
		if x.row.route == pdRoute {
			args = append(args, pair, "--prefill", "http://"+x.prefill, bootstrapPort, "--decode", "http://"+x.decode)
		} else {
			args = append(args, "--worker-urls", "http://"+x.plain)
		}
		return x.launch(ctx, name, port, program, args...)
	}
}

// bootstrapPort is where SGLang's decode would meet prefill; nobody listens there.
const bootstrapPort = "8998"

// startOurs starts bulkhead serve, with a file of settings as small as it may be.
func startOurs(ctx context.Context, x *stage) (*standing, error) {
	port, admin, err := freePorts()
	if err != nil {
		return nil, err
	}
	secrets := map[string]string{}
	for _, name := range [...]string{"pepper", "domain", "tenant"} {
		secret := make([]byte, 32)
		_, _ = rand.Read(secret) // never fails
		secrets[name] = hex.EncodeToString(secret)
		if err := os.WriteFile(filepath.Join(x.dir, name+".key"), []byte(secrets[name]+"\n"), 0o600); err != nil {
			return nil, err
		}
	}
	engine := fmt.Sprintf("engine: sglang\n    nodes: [{url: \"http://%s\"}]", x.plain)
	if x.row.route == pdRoute {
		engine = fmt.Sprintf("engine: sglang-pd\n    prefill: [{url: \"http://%s\", bootstrap: \"127.0.0.1:%s\"}]\n    decode: [{url: \"http://%s\"}]", x.prefill, bootstrapPort, x.decode)
	}
	file := filepath.Join(x.dir, "bulkhead.yaml")
	text := fmt.Sprintf(`listen: %s
admin: {listen: "%s", pprof: %t}
pepper: file:%[4]s/pepper.key
domain_key: file:%[4]s/domain.key
models:
  - name: %[5]s
    %[6]s
tenants:
  - {id: bench, keys: [{key: "file:%[4]s/tenant.key"}], models: [%[5]s]}
`, at(port), at(admin), x.profile != "", x.dir, servedModel, engine)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s, err := x.launch(ctx, nameOurs, port, x.foreign.Bulkhead, "serve", "--config", file)
	if err != nil {
		return nil, err
	}
	s.key, s.admin = secrets["tenant"], admin
	return s, nil
}
