package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/gateway"
)

// serveWhile serves clients on ln until while returns, whose argument gets the
// error of a server that ended by itself. Then it takes no new requests, gives
// those in progress the time of drain, cuts what is left, and waits for the end
// of everything that the front does. It returns the error of while.
//
// handler is the front, or stands before it.
func serveWhile(ln net.Listener, front *gateway.Front, handler http.Handler, while func(failed <-chan error) error, drain func() time.Duration) error {
	srv := gateway.Server(handler)
	base, cut := context.WithCancelCause(context.Background())
	defer cut(nil)
	srv.BaseContext = func(net.Listener) context.Context { return base }
	failed := make(chan error, 1)
	var served sync.WaitGroup
	served.Go(func() {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	})
	err := while(failed)
	if !shutdown(srv, drain()) {
		cut(gateway.ErrShutdown) // the clients that wait are told, and their connections aborted
		shutdown(srv, cutTime)
		_ = srv.Close() // it says only that a listener was closed already
	}
	served.Wait()
	front.Close()
	return err
}

// asOneTenant makes every caller the tenant of one key, whatever the caller says of
// itself.
func asOneTenant(key string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer "+key)
		next.ServeHTTP(w, r)
	})
}

// cutTime bounds the telling of clients whose answers are cut.
const cutTime = 2 * time.Second

// shutdown takes no new connections, and gives the answers in progress the time
// of drain. It reports whether all of them ended.
func shutdown(srv *http.Server, drain time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	return srv.Shutdown(ctx) == nil
}

// overTLS puts TLS on a listener. cert is asked at every handshake, so that a
// certificate can be exchanged.
func overTLS(ln net.Listener, cert func() *tls.Certificate) net.Listener {
	return tls.NewListener(ln, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert(), nil },
	})
}
