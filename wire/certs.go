package wire

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Identity is what a certificate says: the worker's role and its name, as the
// one URI in it, bulkhead://worker/ROLE/NAME.
type Identity struct {
	Role Role
	Name string
}

// String returns the URI.
func (i Identity) String() string { return "bulkhead://worker/" + i.Role.String() + "/" + i.Name }

func parseIdentity(u *url.URL) (Identity, error) {
	role, name, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	r, err := ParseRole(role)
	i := Identity{Role: r, Name: name}
	if err != nil || !validName(name) || u.String() != i.String() {
		return Identity{}, errors.New("the URI in the certificate is not of a worker")
	}
	return i, nil
}

// skew is how far clocks of a fleet may differ when a certificate is new.
const skew = 5 * time.Minute

// Authority issues the certificates of one fleet. Whoever holds it can be any
// worker. Keys and serial numbers come from crypto/rand.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority that is valid from now for life.
func NewAuthority(now time.Time, life time.Duration) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("wire: authority: %w", err)
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "bulkhead authority"},
		NotBefore: now.Add(-skew), NotAfter: now.Add(life),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	cert, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("wire: authority: %w", err)
	}
	return &Authority{cert: cert, key: key}, nil
}

func sign(template, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Issue makes the credential of one worker, valid from now for life.
func (a *Authority) Issue(now time.Time, life time.Duration, who Identity) (*Credential, error) {
	if !who.Role.valid() || !validName(who.Name) {
		return nil, errors.New("wire: issue: the role or the name is not one of a worker")
	}
	uri, err := url.Parse(who.String())
	if err != nil {
		return nil, fmt.Errorf("wire: issue: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("wire: issue: %w", err)
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: who.Name},
		NotBefore: now.Add(-skew), NotAfter: now.Add(life), URIs: []*url.URL{uri},
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, err := sign(template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("wire: issue: %w", err)
	}
	return &Credential{cert: cert, key: key, authority: a.cert, who: who}, nil
}

// PEM returns the authority's certificate, and its key, which is a secret.
func (a *Authority) PEM() (cert, key []byte, err error) {
	key, err = encodeKey(a.key)
	return encodeCert(a.cert), key, err
}

// ParseAuthority reads what [Authority.PEM] returned.
func ParseAuthority(cert, key []byte) (*Authority, error) {
	c, err := decodeCert(cert)
	if err != nil {
		return nil, fmt.Errorf("wire: authority: %w", err)
	}
	k, err := decodeKey(key)
	if err != nil {
		return nil, fmt.Errorf("wire: authority: %w", err)
	}
	if !c.IsCA || !k.PublicKey.Equal(c.PublicKey) {
		return nil, errors.New("wire: authority: the certificate is of no authority, or the key is of another one")
	}
	return &Authority{cert: c, key: k}, nil
}

// Format prints what it is, whatever the verb.
func (a *Authority) Format(s fmt.State, _ rune) { redact(s, "bulkhead authority") }

// Credential is a worker's certificate and key, and the authority that it trusts.
type Credential struct {
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
	authority *x509.Certificate
	who       Identity
}

// Identity is whom the credential is of.
func (c *Credential) Identity() Identity { return c.who }

// Expiry is when the certificate ends.
func (c *Credential) Expiry() time.Time { return c.cert.NotAfter }

// Format prints whose it is, whatever the verb.
func (c *Credential) Format(s fmt.State, _ rune) { redact(s, "credential of "+c.who.String()) }

// PEM returns the certificate, its key, which is a secret, and the authority's
// certificate.
func (c *Credential) PEM() (cert, key, authority []byte, err error) {
	key, err = encodeKey(c.key)
	return encodeCert(c.cert), key, encodeCert(c.authority), err
}

// ParseCredential reads what [Credential.PEM] returned.
func ParseCredential(cert, key, authority []byte) (*Credential, error) {
	c, err := decodeCert(cert)
	if err != nil {
		return nil, fmt.Errorf("wire: credential: %w", err)
	}
	a, err := decodeCert(authority)
	if err != nil {
		return nil, fmt.Errorf("wire: credential: authority: %w", err)
	}
	k, err := decodeKey(key)
	if err != nil {
		return nil, fmt.Errorf("wire: credential: %w", err)
	}
	if !k.PublicKey.Equal(c.PublicKey) {
		return nil, errors.New("wire: credential: the key is not the certificate's")
	}
	if err := c.CheckSignatureFrom(a); err != nil {
		return nil, fmt.Errorf("wire: credential: not of this authority: %w", err)
	}
	if len(c.URIs) != 1 {
		return nil, errors.New("wire: credential: the certificate names no worker, or several")
	}
	who, err := parseIdentity(c.URIs[0])
	if err != nil {
		return nil, fmt.Errorf("wire: credential: %w", err)
	}
	return &Credential{cert: c, key: k, authority: a, who: who}, nil
}

// Client returns the configuration of a connection to a worker of the other
// role: TLS 1.3, mutual, no resumption. The server's name is not compared: its
// certificate must be of our authority and of the other role, and the caller
// knows who it was from the certificate.
func (c *Credential) Client() *tls.Config {
	config := c.config()
	config.InsecureSkipVerify = true // names are not DNS names: config.VerifyConnection does the whole check
	return config
}

// Server returns the configuration of a listener for workers of the other role.
// See [Credential.Client].
func (c *Credential) Server() *tls.Config {
	config := c.config()
	config.ClientAuth = tls.RequireAnyClientCert // config.VerifyConnection does the whole check
	return config
}

func (c *Credential) config() *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(c.authority)
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{{Certificate: [][]byte{c.cert.Raw}, PrivateKey: crypto.Signer(c.key), Leaf: c.cert}},
		SessionTicketsDisabled: true,
		// Pages are long: full records from the first byte.
		DynamicRecordSizingDisabled: true,
		VerifyConnection:            func(s tls.ConnectionState) error { return verify(s, roots, c.who.Role.peer()) },
	}
}

// verify accepts a peer of the wanted role under the authority.
func verify(s tls.ConnectionState, roots *x509.CertPool, want Role) error {
	if len(s.PeerCertificates) == 0 {
		return fail(ReasonCertificate, "none was shown")
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return &Error{Reason: ReasonCertificate, Err: err}
	}
	who, err := identify(s)
	if err != nil {
		return err
	}
	if who.Role != want {
		return fail(ReasonRole, "certificate of a %v", who.Role)
	}
	return nil
}

// identify returns whom the peer's certificate names.
func identify(s tls.ConnectionState) (Identity, error) {
	cert := s.PeerCertificates[0]
	if len(cert.URIs) != 1 {
		return Identity{}, fail(ReasonCertificate, "it names no worker, or several")
	}
	who, err := parseIdentity(cert.URIs[0])
	if err != nil {
		return Identity{}, &Error{Reason: ReasonCertificate, Err: err}
	}
	return who, nil
}

const (
	pemCert = "CERTIFICATE"
	pemKey  = "PRIVATE KEY"
)

func encodeCert(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: c.Raw})
}

func encodeKey(k *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, fmt.Errorf("wire: encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

func decodeCert(b []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(b)
	if block == nil || block.Type != pemCert || len(strings.TrimSpace(string(rest))) != 0 {
		return nil, errors.New("want one PEM block " + pemCert)
	}
	return x509.ParseCertificate(block.Bytes)
}

func decodeKey(b []byte) (*ecdsa.PrivateKey, error) {
	block, rest := pem.Decode(b)
	if block == nil || block.Type != pemKey || len(strings.TrimSpace(string(rest))) != 0 {
		return nil, errors.New("want one PEM block " + pemKey)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("the key cannot be read") // the cause could quote it
	}
	k, ok := key.(*ecdsa.PrivateKey)
	if !ok || k.Curve != elliptic.P256() {
		return nil, errors.New("want an ECDSA key on P-256")
	}
	return k, nil
}
