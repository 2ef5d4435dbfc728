package config

import _ "embed"

//go:embed serve.schema.json
var schema string

//go:embed example.yaml
var example string

// Schema is the JSON schema of [Serve], draft 2020-12. It takes whatever the reader
// takes; the reader checks more.
func Schema() string { return schema }

// Example is a commented file of [Serve], in which whatever is commented out shows its
// default.
func Example() string { return example }
