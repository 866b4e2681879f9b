import './index.css';
import './cell.css';
