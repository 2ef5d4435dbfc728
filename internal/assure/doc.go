// Package assure tries the known ways in which one tenant's text reaches another, on
// the caller's own engines, with the caller's own tenants and fresh secrets of its own.
// Each case runs straight at the engines, through a router if one is named, and through
// Bulkhead, and says RED (it leaks, dies or obeys), GREEN, VOID or SKIP.
//
// What it promises: only addresses that the [Site] names are called, by construction of
// the client and not by good will; no text of a prompt, of an answer or of a canary is
// in a verdict, a report or an error; every verdict has a positive control, and a case
// whose control failed is VOID, never GREEN. What must not come in: configuration
// files, the starting of engines, log output.
package assure
