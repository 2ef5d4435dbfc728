package upstream

import (
	"strconv"

	"bulkhead.dev/bulkhead/internal/fault"
)

// inspected reads a value whose keys are listed.
func (j *judge) inspected(f *field, at fault.Arg) bool {
	switch f.kind {
	case kindTools:
		return j.tools(f.name, at)
	case kindFunctions:
		return j.functions(f.name, at)
	case kindToolChoice:
		return j.toolChoice(f.name, at)
	case kindFormat:
		return j.format(f)
	case kindScalars:
		path := under(f.name)
		return j.keyed(1, f.words, path, j.inner(path), func(name string) bool {
			return j.scalar(path, name)
		})
	default: // kindKeys
		if f.name == "structured_outputs" {
			j.constraints++
		}
		path := under(f.name)
		return j.keyed(1, f.words, path, j.inner(path), func(name string) bool {
			return j.capped(fault.Field(path(name)), j.p.MaxSchema)
		})
	}
}

// under returns the paths of the keys of an object.
func under(object string) func(name string) string {
	return func(name string) string {
		if name == "" {
			return object
		}
		return object + "." + name
	}
}

// inner judges unknown keys of an object by the path of each.
func (j *judge) inner(path func(string) string) func(name string) bool {
	return func(name string) bool { return j.shadowed(path(name)) }
}

// streamOptions reads the object of that name. Nothing of it goes to an engine: how a
// stream is counted is the gateway's to choose.
func (j *judge) streamOptions() bool {
	names := "include_usage include_obfuscation continuous_usage_stats"
	if j.p.Dialect == Bulkhead {
		names = "include_usage include_obfuscation"
	}
	path := under("stream_options")
	// A shadowed key would be without effect, for the object is written anew.
	refused := func(string) bool { return false }
	return j.keyed(1, names, path, refused, func(name string) bool {
		if j.peek() == 'n' {
			return j.word("null")
		}
		on, ok := j.boolean(fault.Field(path(name)))
		switch {
		case !ok:
			return false
		case name == "include_usage":
			j.req.UsageChunk = on
		case name == "include_obfuscation" && on:
			return j.refuse(fault.UnsupportedField, fault.Field(path(name)))
		case on:
			j.req.Dropped = append(j.req.Dropped, path(name))
		}
		return true
	})
}

// tools reads the definitions of tools. What their parameters say is the caller's own.
func (j *judge) tools(name string, at fault.Arg) bool {
	if j.peek() != '[' {
		return j.wrong(at, fault.Fixed("a list of tools"))
	}
	from := j.i
	ok := j.array(1, func(i int) bool {
		path := under(name + "[" + strconv.Itoa(i) + "]")
		stray := j.inner(under(name))
		typed, held := false, false
		ok := j.keyed(2, "type function", path, stray, func(key string) bool {
			if key == "type" {
				typed = true
				return j.isFunction(fault.Field(path(key)))
			}
			held = true
			return j.function(3, under(path(key)), j.inner(under(name+".function")))
		})
		switch {
		case ok && !typed:
			return j.refuse(fault.MissingField, fault.Field(path("type")))
		case ok && !held:
			return j.refuse(fault.MissingField, fault.Field(path("function")))
		}
		return ok
	})
	j.given(from)
	return ok
}

// functions reads the definitions of functions.
func (j *judge) functions(name string, at fault.Arg) bool {
	if j.peek() != '[' {
		return j.wrong(at, fault.Fixed("a list of functions"))
	}
	from := j.i
	ok := j.array(1, func(i int) bool {
		return j.function(2, under(name+"["+strconv.Itoa(i)+"]"), j.inner(under(name)))
	})
	j.given(from)
	return ok
}

// given notes that there are definitions of tools, which began at from.
func (j *judge) given(from int) {
	if !isEmpty(j.b[from:j.i]) {
		j.req.Tools, j.req.Loose = true, true
		j.req.Text += int64(j.i - from)
	}
}

// isFunction reads a type that must be "function".
func (j *judge) isFunction(at fault.Arg) bool {
	v, ok := j.text(at)
	if ok && string(decode(j.b, v)) != "function" {
		return j.refuse(fault.WrongType, at, fault.Fixed(`the word function`))
	}
	return ok
}

// function reads the definition of one function at a depth.
func (j *judge) function(depth int, path func(string) string, stray func(string) bool) bool {
	named := false
	ok := j.keyed(depth, "name description parameters strict", path, stray, func(key string) bool {
		at := fault.Field(path(key))
		switch key {
		case "name":
			named = true
			_, ok := j.text(at)
			return ok
		case "description":
			if j.peek() == 'n' {
				return j.word("null")
			}
			_, ok := j.text(at)
			return ok
		case "parameters":
			return j.capped(at, j.p.MaxSchema)
		default:
			return j.scalar(path, key)
		}
	})
	if ok && !named {
		return j.refuse(fault.MissingField, fault.Field(path("name")))
	}
	return ok
}

// toolChoice reads which tool is to be called: a word, or an object that names one.
func (j *judge) toolChoice(name string, at fault.Arg) bool {
	if j.peek() == '"' {
		v, ok := j.str()
		if !ok {
			return false
		}
		if _, i := word("none auto required", decode(j.b, v)); i < 0 {
			return j.refuse(fault.WrongType, at, fault.Fixed("none, auto, required, or an object that names a function"))
		}
		return true
	}
	path := under(name)
	return j.keyed(1, "type function name", path, j.inner(path), func(key string) bool {
		switch key {
		case "type":
			return j.isFunction(fault.Field(path(key)))
		case "name":
			_, ok := j.text(fault.Field(path(key)))
			return ok
		}
		path := under(path(key))
		return j.keyed(2, "name", path, j.inner(path), func(string) bool {
			_, ok := j.text(fault.Field(path("name")))
			return ok
		})
	})
}

// format reads response_format.
func (j *judge) format(f *field) bool {
	path := under(f.name)
	kind := ""
	schema := false
	ok := j.keyed(1, "type json_schema schema structures triggers format", path, j.inner(path), func(key string) bool {
		at := fault.Field(path(key))
		switch key {
		case "type":
			v, ok := j.text(at)
			if !ok {
				return false
			}
			known, i := word(f.words, decode(j.b, v))
			if i < 0 {
				return j.refuse(fault.WrongType, at, fault.Fixed("one of the formats that this model knows"))
			}
			kind = known
			return true
		case "json_schema":
			schema = true
			if j.peek() == 'n' {
				return j.word("null")
			}
			in := under(path(key))
			return j.keyed(2, "name description strict schema", in, j.inner(in), func(key string) bool {
				return j.capped(fault.Field(in(key)), j.p.MaxSchema)
			})
		default:
			schema = true
			return j.capped(at, j.p.MaxSchema)
		}
	})
	switch {
	case ok && kind == "":
		return j.refuse(fault.MissingField, fault.Field(path("type")))
	case ok && kind != "text":
		j.constraints++
		j.req.Loose = j.req.Loose || schema
	}
	return ok
}
