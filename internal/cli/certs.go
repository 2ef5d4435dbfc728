package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/config"
	"bulkhead.dev/bulkhead/wire"
)

// transport joins the transport of a worker from its configuration.
func transport(c config.Worker, sys System, src source) (wire.Transport, error) {
	var pem [3]string
	names := [...]string{"tls.cert", "tls.key", "tls.ca"}
	for i, s := range [...]config.Secret{c.TLS.Cert, c.TLS.Key, c.TLS.CA} {
		text, err := resolve(s, sys, src, names[i])
		if err != nil {
			return nil, err
		}
		pem[i] = text
	}
	cred, err := wire.ParseCredential([]byte(pem[0]), []byte(pem[1]), []byte(pem[2]))
	if err != nil {
		return nil, usage("configuration: tls: %v", err)
	}
	t := wire.TCP{Options: wire.Options{Streams: c.Streams}, Credential: cred, Protection: wire.TLSAll}
	if c.PlainData {
		t.Protection = wire.PlainData
	}
	return t, nil
}

// Lives of certificates.
const (
	authorityLife  = 10 * 365 * 24 * time.Hour
	credentialLife = 365 * 24 * time.Hour
)

// runCerts is bulkhead certs: it makes an authority, if the folder has none,
// and certificates for the workers that are named.
func runCerts(_ context.Context, sys System, args []string) error {
	f := flags(sys, "certs", "make an authority and worker certificates; workers are given as ROLE/NAME")
	dir := f.String("dir", "certs", "the `FOLDER` for the files; keys are readable by you alone")
	if err := readFlags(f, args); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return usage("name the workers, such as prefill/prefill-0 decode/decode-0")
	}
	now := time.Now()
	ca, save, err := authority(*dir, now)
	if err != nil {
		return err
	}
	var creds []*wire.Credential
	for _, arg := range f.Args() { // all of them, before anything is written
		role, name, _ := strings.Cut(arg, "/")
		r, err := wire.ParseRole(role)
		if err != nil {
			return usage("%q: want prefill/NAME or decode/NAME", arg)
		}
		cred, err := ca.Issue(now, credentialLife, wire.Identity{Role: r, Name: name})
		if err != nil {
			return usage("%q: %v", arg, err)
		}
		creds = append(creds, cred)
	}
	if err := save(); err != nil {
		return err
	}
	for _, cred := range creds {
		cert, key, _, err := cred.PEM()
		if err != nil {
			return err
		}
		name := cred.Identity().Name
		if err := writeNew(filepath.Join(*dir, name+".pem"), cert, filepath.Join(*dir, name+".key"), key); err != nil {
			return err
		}
		fmt.Fprintf(sys.Stdout, "%v: %s.pem and %s.key, until %s\n", cred.Identity(), name, name, cred.Expiry().Format(time.DateOnly))
	}
	return nil
}

// authority reads the folder's authority, or makes one. save writes one that was
// made.
func authority(dir string, now time.Time) (ca *wire.Authority, save func() error, err error) {
	certPath, keyPath := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")
	cert, err := os.ReadFile(certPath)
	if errors.Is(err, fs.ErrNotExist) {
		ca, err := wire.NewAuthority(now, authorityLife)
		if err != nil {
			return nil, nil, err
		}
		cert, key, err := ca.PEM()
		return ca, func() error {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
			return writeNew(certPath, cert, keyPath, key)
		}, err
	}
	if err != nil {
		return nil, nil, err
	}
	key, err := os.ReadFile(keyPath)
	if err != nil {
		return nil, nil, err
	}
	ca, err = wire.ParseAuthority(cert, key)
	return ca, func() error { return nil }, err
}

// writeNew writes a certificate and its key. It overwrites nothing.
func writeNew(certPath string, cert []byte, keyPath string, key []byte) error {
	for _, f := range []struct {
		path string
		data []byte
		mode fs.FileMode
	}{{keyPath, key, 0o600}, {certPath, cert, 0o644}} {
		file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
		if err != nil {
			return err
		}
		_, err = file.Write(f.data)
		if cerr := file.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	}
	return nil
}
