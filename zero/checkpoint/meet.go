package checkpoint

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/zerogap/zerogap/zero/comm"
)

// report is what a rank tells the others.
type report struct {
	What  string     // must be equal on all ranks
	Files []FileInfo `json:",omitempty"` // that it has written
	Err   string     `json:",omitempty"` // why it cannot go on
}

// meet exchanges the ranks' reports. What failed on one rank, or a difference in
// What, is an error on all of them, with the rank.
func meet(ctx context.Context, c comm.Communicator, name string, mine report, failed error) ([]report, error) {
	if failed != nil {
		mine.Err = failed.Error()
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	texts, err := comm.Texts(ctx, c, name, string(text))
	if err != nil {
		return nil, err
	}
	all := make([]report, len(texts))
	for r, text := range texts {
		if err := json.Unmarshal([]byte(text), &all[r]); err != nil {
			return nil, fmt.Errorf("report of rank %d: %w", r, err)
		}
	}
	for r, other := range all {
		switch {
		case other.What != all[0].What:
			return nil, fmt.Errorf("the ranks differ: rank 0 has %s, rank %d has %s", all[0].What, r, other.What)
		case other.Err == "":
		case r == c.Rank():
			return nil, fmt.Errorf("rank %d: %w", r, failed)
		default:
			return nil, fmt.Errorf("rank %d: %s", r, other.Err)
		}
	}
	return all, nil
}
