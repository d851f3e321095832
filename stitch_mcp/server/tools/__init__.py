"""The tools, one module each; `tool_list` names them in the order in which an agent meets them."""
