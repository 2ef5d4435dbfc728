package wire

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"
)

const patience = 20 * time.Second

func await[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case v := <-c:
		return v
	case <-ctx.Done():
		t.Fatal("waited in vain")
		panic("unreachable")
	}
}

func testAuthority(t *testing.T) *Authority {
	t.Helper()
	a, err := NewAuthority(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *Authority) mustIssue(t *testing.T, role Role, name string) *Credential {
	t.Helper()
	c, err := a.Issue(time.Now(), time.Hour, Identity{role, name})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// forge issues a certificate that Issue would not.
func (a *Authority) forge(t *testing.T, change func(*x509.Certificate)) *Credential {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	who := Identity{RoleDecode, "decode.one"}
	uri, err := url.Parse(who.String())
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{uri},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	change(template)
	cert, err := sign(template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &Credential{cert: cert, key: key, authority: a.cert, who: who}
}

// trusting is a credential whose holder trusts a.
func trusting(a *Authority, c *Credential) *Credential {
	return &Credential{cert: c.cert, key: c.key, authority: a.cert, who: c.who}
}

// TestCertificates: who may be a decode worker for a prefill worker, and the
// other way round. Both sides learn the reason.
func TestCertificates(t *testing.T) {
	a, other := testAuthority(t), testAuthority(t)
	prefill := a.mustIssue(t, RolePrefill, "prefill.one")
	parse := func(s string) []*url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return []*url.URL{u}
	}
	for _, c := range []struct {
		name       string
		server     *Credential
		client     *Credential
		atListener Reason
		atDialler  Reason
	}{
		{"a pair", prefill, a.mustIssue(t, RoleDecode, "decode.one"), NoReason, NoReason}, // the positive control
		{"client of another authority", prefill, trusting(a, other.mustIssue(t, RoleDecode, "decode.one")), ReasonCertificate, ReasonCertificate},
		{"server of another authority", trusting(a, other.mustIssue(t, RolePrefill, "prefill.one")), a.mustIssue(t, RoleDecode, "decode.one"), ReasonCertificate, ReasonCertificate},
		{"expired client", prefill, a.forge(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), ReasonCertificate, ReasonCertificate},
		{"client of the future", prefill, a.forge(t, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), ReasonCertificate, ReasonCertificate},
		{"client with a certificate of a prefill worker", prefill, a.forge(t, func(c *x509.Certificate) { c.URIs = parse("bulkhead://worker/prefill/x") }), ReasonRole, ReasonCertificate},
		{"client without a name", prefill, a.forge(t, func(c *x509.Certificate) { c.URIs = nil }), ReasonCertificate, ReasonCertificate},
		{"client with two names", prefill, a.forge(t, func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }), ReasonCertificate, ReasonCertificate},
		{"client with another kind of name", prefill, a.forge(t, func(c *x509.Certificate) { c.URIs = parse("spiffe://worker/decode/decode.one") }), ReasonCertificate, ReasonCertificate},
		{"client with a query in its name", prefill, a.forge(t, func(c *x509.Certificate) { c.URIs = parse("bulkhead://worker/decode/decode.one?a") }), ReasonCertificate, ReasonCertificate},
		{"certificate for something else", prefill, a.forge(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning} }), ReasonCertificate, ReasonCertificate},
		{"hello of another worker", prefill, a.forge(t, func(c *x509.Certificate) { c.URIs = parse("bulkhead://worker/decode/decode.two") }), ReasonIdentity, ReasonIdentity},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, refused := testOptions()
			listening, dialling := newHeard(), newHeard()
			listener, err := TCP{Options: o, Credential: c.server}.Listen("127.0.0.1:0", testHello(RolePrefill), listening, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := listener.Close(); err != nil {
					t.Error(err)
				}
			}()
			link, err := TCP{Options: o, Credential: c.client}.Dial(t.Context(), listener.Addr(), testHello(RoleDecode), dialling, testPool(t).Landing())
			if ReasonOf(err) != c.atDialler {
				t.Errorf("dial: %v, want %v", err, c.atDialler)
			}
			if c.atListener == NoReason {
				link.Close(nil)
				await(t, dialling.closed)
				return
			}
			if err := await(t, refused); ReasonOf(err) != c.atListener {
				t.Errorf("refused: %v, want %v", err, c.atListener)
			}
			if len(listening.opened) != 0 {
				t.Error("a link was opened")
			}
		})
	}
}

// TestStrangersAtTCP: connections that do not speak what the listener wants.
func TestStrangersAtTCP(t *testing.T) {
	a := testAuthority(t)
	server, client := a.mustIssue(t, RolePrefill, "prefill.one"), a.mustIssue(t, RoleDecode, "decode.one")
	hello := appendHello(nil, greeting{testHello(RoleDecode), PlainData, 1})
	type stranger func(t *testing.T, raw net.Conn)
	write := func(b []byte) stranger {
		return func(t *testing.T, raw net.Conn) {
			if _, err := raw.Write(b); err != nil {
				t.Error(err)
			}
		}
	}
	secure := func(change func(*tls.Config), then []byte) stranger {
		return func(_ *testing.T, raw net.Conn) {
			config := client.Client()
			change(config)
			c := tls.Client(raw, config)
			if c.HandshakeContext(context.Background()) == nil {
				_, _ = c.Write(then) // the listener may have hung up already
			}
		}
	}
	noCert := func(c *tls.Config) { c.Certificates = nil }
	oldTLS := func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }
	same := func(*tls.Config) {}
	for _, c := range []struct {
		name string
		mode Protection
		do   stranger
		want Reason
	}{
		{"hangs up", TLSAll, func(*testing.T, net.Conn) {}, ReasonGone},
		{"plain text where all is TLS", TLSAll, write(hello), ReasonProtection},
		{"a web browser", TLSAll, write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")), ReasonProtection},
		{"no certificate", TLSAll, secure(noCert, hello), ReasonProtection},
		{"an old TLS", TLSAll, secure(oldTLS, hello), ReasonProtection},
		{"hello for plain data where all is TLS", TLSAll, secure(same, hello), ReasonProtection},
		{"hello in the clear", PlainData, write(hello), ReasonProtection},
		{"a bind in the clear, for no link", PlainData, write(appendBind(nil, bind{})), ReasonToken},
		{"a bind under TLS, where data is plain", PlainData, secure(same, appendBind(nil, bind{})), ReasonProtection},
		{"text in the clear", PlainData, write([]byte("SECRET SECRET SECRET SECRET")), ReasonMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, refused := testOptions()
			heard := newHeard()
			listener, err := TCP{Options: o, Credential: server, Protection: c.mode}.Listen("127.0.0.1:0", testHello(RolePrefill), heard, nil)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := net.Dial("tcp", listener.Addr())
			if err != nil {
				t.Fatal(err)
			}
			c.do(t, raw)
			if err := raw.Close(); err != nil {
				t.Fatal(err)
			}
			if err := await(t, refused); ReasonOf(err) != c.want || strings.Contains(err.Error(), "SECRET") {
				t.Errorf("refused: %v, want %v", err, c.want)
			}
			if err := listener.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTCPConfiguration: what cannot work is refused before anything is dialled.
func TestTCPConfiguration(t *testing.T) {
	a := testAuthority(t)
	pool := testPool(t)
	for name, tcp := range map[string]TCP{
		"no credential":    {},
		"another worker's": {Credential: a.mustIssue(t, RoleDecode, "decode.two")},
		"another role's":   {Credential: a.mustIssue(t, RolePrefill, "decode.one")},
		"no protection":    {Credential: a.mustIssue(t, RoleDecode, "decode.one"), Protection: inProcess},
	} {
		if _, err := tcp.Dial(t.Context(), "127.0.0.1:1", testHello(RoleDecode), newHeard(), pool.Landing()); err == nil || ReasonOf(err) != NoReason {
			t.Errorf("%s: dial: %v", name, err)
		}
		if _, err := tcp.Listen("127.0.0.1:0", testHello(RoleDecode), newHeard(), pool.Landing()); err == nil {
			t.Errorf("%s: listens", name)
		}
	}
	good := TCP{Credential: a.mustIssue(t, RoleDecode, "decode.one")}
	if _, err := good.Dial(t.Context(), "127.0.0.1:1", testHello(RoleDecode), newHeard(), pool.Landing()); ReasonOf(err) != ReasonGone {
		t.Errorf("dial of a closed port: %v", err)
	}
	if _, err := good.Listen("256.0.0.1:0", testHello(RoleDecode), newHeard(), pool.Landing()); err == nil {
		t.Error("listens nowhere")
	}
}

// TestCredentialFiles: what is exported is imported as the same, and nothing
// else is.
func TestCredentialFiles(t *testing.T) {
	a, other := testAuthority(t), testAuthority(t)
	aCert, aKey, err := a.PEM()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseAuthority(aCert, aKey)
	if err != nil {
		t.Fatal(err)
	}
	c := again.mustIssue(t, RolePrefill, "prefill.one") // under the authority that was read back
	cert, key, authority, err := c.PEM()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(authority, aCert) {
		t.Error("the authority's certificate has changed")
	}
	back, err := ParseCredential(cert, key, authority)
	if err != nil || back.Identity() != c.Identity() || !back.Expiry().Equal(c.Expiry()) || !back.key.Equal(c.key) {
		t.Fatalf("%v, %v", back, err)
	}
	_, otherKey, otherCert, err := other.mustIssue(t, RolePrefill, "prefill.one").PEM()
	if err != nil {
		t.Fatal(err)
	}
	nobody := a.forge(t, func(c *x509.Certificate) { c.URIs = nil })
	for name, err := range map[string]error{
		"key of another":          second(ParseCredential(cert, otherKey, authority)),
		"another authority":       second(ParseCredential(cert, key, otherCert)),
		"key for certificate":     second(ParseCredential(key, key, authority)),
		"certificate for key":     second(ParseCredential(cert, cert, authority)),
		"two certificates":        second(ParseCredential(append(bytes.Clone(cert), cert...), key, authority)),
		"nothing":                 second(ParseCredential(nil, nil, nil)),
		"no name":                 second(ParseCredential(encodeCert(nobody.cert), mustKey(t, nobody.key), authority)),
		"authority's wrong key":   second(ParseAuthority(aCert, key)),
		"authority that is none":  second(ParseAuthority(cert, key)),
		"authority without a key": second(ParseAuthority(aCert, nil)),
		"bad name":                second(a.Issue(time.Now(), time.Hour, Identity{RoleDecode, "A B"})),
		"long name":               second(a.Issue(time.Now(), time.Hour, Identity{RoleDecode, strings.Repeat("a", MaxName+1)})),
		"no role":                 second(a.Issue(time.Now(), time.Hour, Identity{0, "a"})),
	} {
		if err == nil {
			t.Errorf("%s was taken", name)
		} else if strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%s: the error quotes its input: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func mustKey(t *testing.T, k *ecdsa.PrivateKey) []byte {
	t.Helper()
	b, err := encodeKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRoles reads back the names of roles.
func TestRoles(t *testing.T) {
	for _, r := range []Role{RolePrefill, RoleDecode} {
		if got, err := ParseRole(r.String()); err != nil || got != r {
			t.Errorf("%v: %v, %v", r, got, err)
		}
		if r.peer() == r || !r.peer().valid() {
			t.Errorf("peer of %v is %v", r, r.peer())
		}
	}
	if _, err := ParseRole("unknown"); err == nil {
		t.Error("unknown is a role")
	}
}

// stolen is a listener whose random source fails.
type stolen struct{}

func (stolen) Read([]byte) (int, error) { return 0, errors.New("no entropy") }

// TestNoRandom: without randomness there is no link.
func TestNoRandom(t *testing.T) {
	refused := make(chan error, 1)
	m := NewMem(Options{Rand: stolen{}, Refused: func(err error) { refused <- err }})
	listener, err := m.Listen("a", testHello(RolePrefill), newHeard(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Dial(t.Context(), "a", testHello(RoleDecode), newHeard(), testPool(t).Landing()); ReasonOf(err) != ReasonClosed {
		t.Errorf("dial: %v", err)
	}
	if err := await(t, refused); ReasonOf(err) != ReasonClosed {
		t.Errorf("refused: %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDataOfAnotherWorker: the proof is not enough, the certificate must be of
// the same worker as that of the control connection.
func TestDataOfAnotherWorker(t *testing.T) {
	a := testAuthority(t)
	o, refused := testOptions()
	listener, err := TCP{Options: o, Credential: a.mustIssue(t, RolePrefill, "prefill.one")}.Listen("127.0.0.1:0", testHello(RolePrefill), newHeard(), nil)
	if err != nil {
		t.Fatal(err)
	}
	connect := func(name string) net.Conn {
		raw, err := net.Dial("tcp", listener.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = raw.Close() }) // whatever the test left open
		return tls.Client(raw, a.mustIssue(t, RoleDecode, name).Client())
	}
	control := connect("decode.one")
	put(t, control, appendHello(nil, greeting{testHello(RoleDecode), TLSAll, 1}))
	ticket, _, err := parseWelcome(get(t, control, frameWelcome))
	if err != nil {
		t.Fatal(err)
	}
	frame := appendBind(nil, bind{ticket.id, 0, ticket.prove(0, frameBind)})
	thief := connect("decode.two")
	put(t, thief, frame)
	if err := parseRefused(get(t, thief, frameRefused)); ReasonOf(err) != ReasonIdentity {
		t.Errorf("the thief was told %v", err)
	}
	if err := await(t, refused); ReasonOf(err) != ReasonIdentity {
		t.Errorf("refused: %v", err)
	}
	owner := connect("decode.one") // the attempt has not used the index up
	put(t, owner, frame)
	get(t, owner, frameBound)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
}
