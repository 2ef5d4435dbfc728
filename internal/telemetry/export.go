package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	metrics "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

// Export says where metrics are posted as OTLP over HTTP, and as whose.
//
// Counts are cumulative since Start: an export that a collector does not take loses
// nothing that the next one does not bring, so none is repeated or kept.
type Export struct {
	// URL is the whole one, such as http://127.0.0.1:4318/v1/metrics.
	URL string
	// Every is the time between two exports.
	Every time.Duration
	// Key is sent as a bearer token; empty for none.
	Key string
	// Version is that of the program, Instance a random name of this process.
	Version, Instance string
	// Start is when the counts began.
	Start time.Time
	// Now is the clock.
	Now func() time.Time
	// Client sends; nil means one without a proxy that follows no redirect.
	Client *http.Client
}

// exportTime bounds one export.
const exportTime = 5 * time.Second

// maxReply bounds what is read of a collector's answer, in bytes.
const maxReply = 64 << 10

// Export posts the metrics until ctx ends, and once more then. A run of failures is
// told once, and so is its end.
func (s *Set) Export(ctx context.Context, e Export) {
	if e.Client == nil {
		e.Client = &http.Client{
			Transport:     &http.Transport{MaxIdleConns: 1, IdleConnTimeout: 2 * e.Every},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
		defer e.Client.CloseIdleConnections()
	}
	failing := false
	once := func() {
		post, cancel := context.WithTimeout(context.WithoutCancel(ctx), exportTime)
		defer cancel()
		err := s.post(post, e)
		if err != nil {
			s.failed.WithLabelValues().Inc()
		}
		if failing != (err != nil) {
			s.Event(map[bool]string{true: "export_failed", false: "export_recovered"}[err != nil])
		}
		failing = err != nil
	}
	t := time.NewTicker(e.Every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			once()
		case <-ctx.Done():
			once()
			return
		}
	}
}

// post sends the metrics once.
func (s *Set) post(ctx context.Context, e Export) error {
	families, err := s.registry.Gather()
	if err != nil {
		return fmt.Errorf("telemetry: gather: %w", err)
	}
	body, err := proto.Marshal(e.request(families))
	if err != nil {
		return fmt.Errorf("telemetry: encode: %w", err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err = z.Write(body); err == nil {
		err = z.Close()
	}
	if err != nil {
		return fmt.Errorf("telemetry: encode: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL, &packed)
	if err != nil {
		return errors.New("telemetry: export: the URL is none")
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("Content-Encoding", "gzip")
	if e.Key != "" {
		req.Header.Set("Authorization", "Bearer "+e.Key)
	}
	resp, err := e.Client.Do(req)
	if err != nil {
		return errors.New("telemetry: export: no answer")
	}
	defer resp.Body.Close()
	reply, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	var said collector.ExportMetricsServiceResponse
	switch {
	case err != nil || resp.StatusCode != http.StatusOK:
		return fmt.Errorf("telemetry: export: status %d", resp.StatusCode)
	case proto.Unmarshal(reply, &said) == nil && said.GetPartialSuccess().GetRejectedDataPoints() > 0:
		return fmt.Errorf("telemetry: export: %d data points were rejected", said.GetPartialSuccess().GetRejectedDataPoints())
	}
	return nil
}

// request is the metrics as OTLP has them.
func (e Export) request(families []*dto.MetricFamily) *collector.ExportMetricsServiceRequest {
	all := make([]*metrics.Metric, 0, len(families))
	for _, f := range families {
		if m := e.metric(f); m != nil {
			all = append(all, m)
		}
	}
	return &collector.ExportMetricsServiceRequest{ResourceMetrics: []*metrics.ResourceMetrics{{
		Resource: &resource.Resource{Attributes: []*common.KeyValue{
			attribute("service.name", "bulkhead"), attribute("service.version", e.Version), attribute("service.instance.id", e.Instance),
		}},
		ScopeMetrics: []*metrics.ScopeMetrics{{
			Scope:   &common.InstrumentationScope{Name: "bulkhead.dev/bulkhead", Version: e.Version},
			Metrics: all,
		}},
	}}}
}

func attribute(key, value string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: value}}}
}

// metric is one family; nil if it is of a kind that is not used here.
func (e Export) metric(f *dto.MetricFamily) *metrics.Metric {
	m := &metrics.Metric{Name: f.GetName(), Description: f.GetHelp()}
	start, now := uint64(e.Start.UnixNano()), uint64(e.Now().UnixNano())
	var points []*metrics.NumberDataPoint
	var spread []*metrics.HistogramDataPoint
	for _, one := range f.GetMetric() {
		labels := make([]*common.KeyValue, 0, len(one.GetLabel()))
		for _, l := range one.GetLabel() {
			labels = append(labels, attribute(l.GetName(), l.GetValue()))
		}
		point := &metrics.NumberDataPoint{Attributes: labels, StartTimeUnixNano: start, TimeUnixNano: now}
		switch f.GetType() {
		case dto.MetricType_COUNTER:
			point.Value = &metrics.NumberDataPoint_AsDouble{AsDouble: one.GetCounter().GetValue()}
			points = append(points, point)
		case dto.MetricType_GAUGE:
			point.StartTimeUnixNano = 0 // it has none
			point.Value = &metrics.NumberDataPoint_AsDouble{AsDouble: one.GetGauge().GetValue()}
			points = append(points, point)
		case dto.MetricType_HISTOGRAM:
			h := buckets(one.GetHistogram())
			h.Attributes, h.StartTimeUnixNano, h.TimeUnixNano = labels, start, now
			spread = append(spread, h)
		}
	}
	const cumulative = metrics.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE
	switch f.GetType() {
	case dto.MetricType_COUNTER:
		m.Data = &metrics.Metric_Sum{Sum: &metrics.Sum{DataPoints: points, AggregationTemporality: cumulative, IsMonotonic: true}}
	case dto.MetricType_GAUGE:
		m.Data = &metrics.Metric_Gauge{Gauge: &metrics.Gauge{DataPoints: points}}
	case dto.MetricType_HISTOGRAM:
		m.Data = &metrics.Metric_Histogram{Histogram: &metrics.Histogram{DataPoints: spread, AggregationTemporality: cumulative}}
	default:
		return nil
	}
	return m
}

// buckets is a histogram as OTLP has it: each bucket's own count, and one above all
// bounds.
func buckets(h *dto.Histogram) *metrics.HistogramDataPoint {
	sum := h.GetSampleSum()
	p := &metrics.HistogramDataPoint{Count: h.GetSampleCount(), Sum: &sum}
	var below uint64
	for _, b := range h.GetBucket() {
		if math.IsInf(b.GetUpperBound(), 1) {
			continue // the one above all bounds
		}
		p.ExplicitBounds = append(p.ExplicitBounds, b.GetUpperBound())
		p.BucketCounts = append(p.BucketCounts, b.GetCumulativeCount()-below)
		below = b.GetCumulativeCount()
	}
	p.BucketCounts = append(p.BucketCounts, h.GetSampleCount()-below)
	return p
}
