package cli

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"os"
	"strings"

	"bulkhead.dev/bulkhead/internal/config"
)

// source is where a configuration came from.
type source uint8

const (
	fromFile source = iota
	fromParent
)

// resolve reads the value that a secret names. name is the setting, for errors, which
// never hold the value.
func resolve(s config.Secret, sys System, src source, name string) (string, error) {
	if !strings.HasPrefix(name, "--") {
		name = "configuration: " + name
	}
	v, err := read(s, sys, src)
	if err != nil {
		return "", usage("%s: %w", name, err)
	}
	return v, nil
}

// read is resolve with errors that do not say which secret it is.
func read(s config.Secret, sys System, src source) (string, error) {
	kind, rest, _ := strings.Cut(string(s), ":")
	switch {
	case s == "":
		return "", nil
	case kind == "env":
		v := sys.Getenv(rest)
		if v == "" {
			return "", errors.New("the environment variable is empty or not set")
		}
		return v, nil
	case kind == "file":
		b, err := os.ReadFile(rest)
		if err != nil {
			return "", err
		}
		return strings.TrimRight(string(b), "\r\n"), nil
	case kind == "value" && src == fromParent:
		return rest, nil
	}
	return "", errors.New("a secret is given as env:NAME or file:PATH, never as itself")
}

// hexKey reads a key of 32 bytes.
func hexKey(s string) ([]byte, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 32 {
		return nil, errors.New("want 64 hex digits")
	}
	return b, nil
}

// secretReader reads secrets and collects what is wrong with them.
type secretReader struct {
	sys System
	config.Problems
}

func (r *secretReader) text(path string, s config.Secret) string {
	text, err := read(s, r.sys, fromFile)
	if err == nil && text == "" {
		err = errors.New("the secret is empty")
	}
	if err != nil {
		r.Add(path, "%v", err)
	}
	return text
}

// optional is text for a secret that may be missing.
func (r *secretReader) optional(path string, s config.Secret) string {
	if s == "" {
		return ""
	}
	return r.text(path, s)
}

// key reads a key of 32 bytes; nil after an error.
func (r *secretReader) key(path string, s config.Secret) []byte {
	text := r.text(path, s)
	if text == "" {
		return nil
	}
	key, err := hexKey(text)
	if err != nil {
		r.Add(path, "%v", err)
	}
	return key
}

// certificate reads a certificate and its key; nil if there is none, or after an error.
func (r *secretReader) certificate(path string, t *config.TLSPair) *tls.Certificate {
	if t == nil {
		return nil
	}
	cert, key := r.text(path+".cert", t.Cert), r.text(path+".key", t.Key)
	if cert == "" || key == "" {
		return nil
	}
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		r.Add(path, "cert and key do not make a pair: %s", strings.TrimPrefix(err.Error(), "tls: "))
		return nil
	}
	return &pair
}

// certificates reads those of a PEM; none after an error. One that cannot be read is an
// error and not passed over, for who relied on it would find out later.
func (r *secretReader) certificates(path string, s config.Secret) []*x509.Certificate {
	text := r.text(path, s)
	if text == "" {
		return nil
	}
	var all []*x509.Certificate
	for b, rest := pem.Decode([]byte(text)); b != nil; b, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(b.Bytes); b.Type == "CERTIFICATE" && err == nil {
			all = append(all, c)
		}
	}
	switch begun := strings.Count(text, "-----BEGIN CERTIFICATE-----"); {
	case begun == 0:
		r.Add(path, "it holds no certificate in PEM")
		return nil
	case begun != len(all):
		r.Add(path, "of its %d certificates in PEM only %d can be read", begun, len(all))
		return nil
	}
	return all
}

// authorities reads who vouches for https engines; nil is the system's.
func (r *secretReader) authorities(path string, s config.Secret) *tls.Config {
	if s == "" {
		return nil
	}
	pool := x509.NewCertPool()
	for _, c := range r.certificates(path, s) {
		pool.AddCert(c)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

// minControl is the least length of a control key of our own workers, in bytes.
const minControl = 16

// control reads the control key of our own workers, which travels in a header.
func (r *secretReader) control(path string, s config.Secret) string {
	text := r.text(path, s)
	bad := func(c rune) bool { return c <= ' ' || c > '~' }
	if text != "" && (len(text) < minControl || strings.ContainsFunc(text, bad)) {
		r.Add(path, "want at least %d bytes of printable ASCII without spaces", minControl)
	}
	return text
}
