package gateway

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// minKey is the least length of a secret key, in bytes.
const minKey = 16

// check says what is wrong with the configuration, with the path of the setting.
func (c *Config) check() error {
	switch {
	case len(c.Pepper) < minKey:
		return fmt.Errorf("gateway: configure: pepper: at least %d bytes", minKey)
	case len(c.DomainKey) < minKey:
		return fmt.Errorf("gateway: configure: domain key: at least %d bytes", minKey)
	case c.Events == nil || c.Random == nil || c.Clock == nil:
		return errors.New("gateway: configure: events, random and clock are required")
	case c.Bounds.RetryPercent < 0 || c.Bounds.RetryPercent > 100:
		return errors.New("gateway: configure: bounds.retry_percent: from 0 to 100")
	case c.Records < 0:
		return errors.New("gateway: configure: records: negative")
	}
	models := map[string]bool{}
	for i, m := range c.Models {
		if m.Name == "" || models[m.Name] {
			return fmt.Errorf("gateway: configure: models[%d].name: empty or used twice", i)
		}
		models[m.Name] = true
		if err := m.WithDefaults().check(); err != nil {
			return fmt.Errorf("gateway: configure: models[%d].%w", i, err)
		}
		if d := m.Hold.CommitAfter; d != 0 && (d < minCommit || d >= c.Bounds.WithDefaults().FirstByte) {
			return fmt.Errorf("gateway: configure: models[%d].hold.commit_after: at least %v and less than bounds.first_byte", i, minCommit)
		}
		if m.Dialect == upstream.Bulkhead && c.Passer == nil {
			return fmt.Errorf("gateway: configure: models[%d]: the dialect bulkhead needs a passer", i)
		}
	}
	if err := c.checkModes(); err != nil {
		return err
	}
	return c.checkTenants(models)
}

func (c *Config) checkModes() error {
	for name, m := range c.Modes {
		switch {
		case !slices.Contains(Controls(), name):
			return errors.New("gateway: configure: modes: there is no such control")
		case m.State > Off:
			return fmt.Errorf("gateway: configure: modes[%s].mode: there is no such state", name)
		case (m.State == Shadow) == m.Until.IsZero():
			return fmt.Errorf("gateway: configure: modes[%s].until: required with shadow, and with nothing else", name)
		}
	}
	return nil
}

func (c *Config) checkTenants(models map[string]bool) error {
	ids, keys := map[string]bool{}, map[account.KeyHash]bool{}
	for i, t := range c.Tenants {
		wrong := func(format string, args ...any) error {
			return fmt.Errorf("gateway: configure: tenants[%d]"+format, append([]any{i}, args...)...)
		}
		if t.ID == "" || ids[t.ID] || t.ID == probeTenant {
			return wrong(".id: empty or used twice")
		}
		ids[t.ID] = true
		if t.InFlight < 0 || t.Bytes < 0 || t.RequestsPerMinute < 0 || t.TokensPerMinute < 0 || t.Budget < 0 || t.Uncollected < 0 || t.RetryPercent < 0 || t.RetryPercent > 100 {
			return wrong(": a budget is negative, or a share is over 100")
		}
		for j, k := range t.Keys {
			if k.Hash == (account.KeyHash{}) || keys[k.Hash] {
				return wrong(".keys[%d]: empty or used twice", j)
			}
			keys[k.Hash] = true
		}
		for j, m := range t.Models {
			if !models[m] {
				return wrong(".models[%d]: there is no such model", j)
			}
		}
		for name, a := range t.Aliases {
			if name == "" || !models[a.Model] || slices.Contains(t.Models, name) {
				return wrong(".aliases: empty, the name of a model, or of a model that there is not")
			}
		}
		if n := t.Narrow; n != "" && n != NarrowSafetyID && !mayNarrow(strings.ToLower(n)) {
			return wrong(".narrow: not a header that may narrow")
		}
	}
	return nil
}

// mayNarrow says whether a header may narrow a domain: one that the server shows us, and
// that the tenant's own servers can choose.
func mayNarrow(name string) bool {
	switch name {
	case "authorization", "host", "transfer-encoding", "trailer", "connection", "content-length":
		return false
	}
	plain := func(c rune) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' }
	return !reservedHeader(name) && !strings.ContainsFunc(name, func(c rune) bool { return !plain(c) })
}

func (m Model) check() error {
	if m.Window < 0 || m.DefaultMaxTokens < 0 || m.Sizes.BytesPerToken < 0 || m.Sizes.PerMessage < 0 || m.Sizes.PerRequest < 0 ||
		m.Lease < 0 || m.MaxSchema < 0 || m.MaxSequences < 0 || m.Probe.MaxTokens < 0 || m.Probe.Every < 0 || m.Hold.Bytes < 0 {
		return errors.New("name: a number is negative")
	}
	if (m.Probe.Prompt == "") != (m.Probe.Want == "") {
		return errors.New("probe: a prompt and what its answer contains belong together")
	}
	if err := m.Engines.Check(); err != nil {
		return fmt.Errorf("engines: %w", err)
	}
	return nil
}
