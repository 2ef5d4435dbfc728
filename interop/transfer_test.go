package main

import (
	"testing"

	"bulkhead.dev/bulkhead/kv"
)

// What counts the rows that were written over must find one.
func TestForeignFindsOneRow(t *testing.T) {
	layout := kv.Layout{Layers: 2, Heads: 1, Dim: 8, PageTokens: 16}
	pool, err := kv.New(kv.Config{Layout: layout, Pages: 2, Epoch: 1, Keys: func() kv.Key { return kv.Key{1} }})
	if err != nil {
		t.Fatal(err)
	}
	s, err := fill(pool, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	if rows, wrong, err := foreign(s, 3); err != nil || rows != 64 || wrong != 0 {
		t.Fatalf("rows %d, wrong %d, %v; want 64, 0", rows, wrong, err)
	}
	_, v, err := s.Rows(1, 1, s.Tokens())
	if err != nil {
		t.Fatal(err)
	}
	v[len(v)-1] = 4
	if _, wrong, err := foreign(s, 3); err != nil || wrong != 1 {
		t.Fatalf("wrong %d, %v; want 1", wrong, err)
	}
}
